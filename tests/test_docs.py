"""The documentation: every command in it parses, files and settings that it names exist, and some of it is run.

A block that begins with ```` ```sh run ```` or ```` ```python run ```` is run, page by page and block by block, in a
folder that has ``config/``, ``data/demo`` and ``checkpoints/demo/last.pth`` as ``make demo`` leaves them, but tiny. So
that it is quick, synthetic pictures are few and trainings short, whatever the page says. A comment ``# status 2``
behind a command tells that it is to end so. Other blocks are only parsed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch

from posenet import PoseNet
from posenet.cli import main as cli
from posenet.config import config_to_dict, load_config

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"),
                *(ROOT / folder / "README.md" for folder in ("config", "data", "checkpoints"))])
OTHER_COMMANDS = {"apt-get", "cat", "cd", "cp", "curl", "docker", "echo", "export", "ffmpeg", "find", "git", "grep",
                  "head", "kill", "less", "ls", "mkdir", "mv", "nvidia-smi", "pip", "ps", "rsync", "sbatch", "scancel",
                  "scp", "source", "squeue", "ssh", "sudo", "tail", "tar", "tensorboard", "unzip", "wget"}
"""Commands that are not ours and are taken as they are."""
KEYWORDS = {"do", "done", "else", "fi", "then"}
TINY = ["model.stacks=1", "model.width=16", "model.growth=2"]
QUICK = {"train": ["--max-steps", "2", "--set", *TINY, "train.input_size=64", "train.batch_size=2", "data.workers=0",
                   "train.epochs=1", "log.tensorboard=false", "log.curves=false", "train.channels_last=false"],
         "make-synthetic": ["--train", "6", "--val", "2"]}
"""What is added to the commands of blocks that are run."""


@dataclass(frozen=True)
class Block:
    """A fenced block: the words behind the fence, the text, and the line it begins on."""

    words: tuple[str, ...]
    text: str
    line: int


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w[^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    every = [Block(tuple(m[1].split()), m[2], text.count("\n", 0, m.start()) + 1) for m in found]
    return [block for block in every if block.words[0] in languages]


def commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Simple commands of a shell block, variables filled in, each with the comment behind it."""
    variables: dict[str, str] = {}
    text = re.sub(r"<<'?(\w+)'?(.*?)^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\$\([^()]*\)", "1", re.sub(r"\\\n", " ", text))
    for line in text.splitlines():
        line = re.sub(r"\$\{?(\w+)\}?", lambda m: variables.get(m[1], m[0]), line)
        comment = line.partition(" # ")[2].strip()
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";&|"):
                words.append(word)
                continue
            words = _simple(words, variables)
            if words:
                yield words, comment
            words = []


def _simple(words: list[str], variables: dict[str, str]) -> list[str]:
    """A command without keywords, assignments (which are noted) and redirections."""
    while words and words[0] in KEYWORDS:
        words = words[1:]
    if words[:1] == ["for"]:
        variables[words[1]] = words[3]
        return []
    while words and (assignment := re.fullmatch(r"(\w+)=(.*)", words[0], re.DOTALL)):
        variables[assignment[1]] = assignment[2]
        words = words[1:]
    for i, word in enumerate(words):
        if set(word) <= set("<>&") and word:
            return words[:i]
    return words


def tool_of(words: list[str]) -> tuple[str, list[str]] | None:
    """The tool that a command runs, itself or through a launcher, and its arguments."""
    for i, word in enumerate(words):
        if script := re.fullmatch(r"tools/(\w+)\.py", word):
            return script[1].replace("_", "-"), words[i + 1:]
    return (words[1], words[2:]) if words[0] == "posenet" and words[1] != "--help" else None


@cache
def parser_of(tool: str) -> argparse.ArgumentParser:
    assert tool in cli.TOOLS, f"there is no tool {tool}"
    return cli.make_parser(import_module(f"posenet.cli.{cli.TOOLS[tool]}"), tool)


@cache
def made_here() -> set[str]:
    """Files that a page tells the reader to make."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    return {name for text in texts for name in re.findall(r"--output[ =](\S+)|^# (\S+\.toml)$", text, re.MULTILINE)
            for name in name if name}


def check_tool(tool: str, arguments: list[str]) -> None:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            args = parser_of(tool).parse_args(cli._with_dashes(arguments))
    except SystemExit as end:
        assert not end.code, said.getvalue().splitlines()[-1]
        return
    file = getattr(args, "config", None)
    assert not file or (ROOT / file).is_file() or file in made_here(), f"{file} does not exist"
    pairs = getattr(args, "overrides", None) or []
    for pair in pairs:
        section, _, name = pair.partition("=")[0].partition(".")
        assert name in config_to_dict(load_config()).get(section, {}), f"there is no setting {section}.{name}"
    load_config(ROOT / file if file and (ROOT / file).is_file() else None,
                [pair for pair in pairs if not pair.startswith("model.skeleton=")])


def check(words: list[str]) -> None:
    if tool := tool_of(words):
        check_tool(*tool)
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert all(word in targets or "=" in word for word in words[1:]), f"make has no target {words[1:]}"
    elif words[0] in ("python", "python3"):
        assert words[1][0] == "-" or (ROOT / words[1]).is_file(), f"{words[1]} does not exist"
    else:
        assert words[0] in {*OTHER_COMMANDS, "posenet"} or (ROOT / words[0]).is_file(), \
            f"{words[0]} is no command that docs use"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_parses(page: Path) -> None:
    for block in blocks(page, "sh", "bash", "shell", "console"):
        for words, _ in commands(block.text):
            try:
                check(words)
            except Exception as error:
                pytest.fail(f"{page.name}, block on line {block.line}: {shlex.join(words)}\n{error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_python_and_toml_block_parses(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block.text, f"{page.name}:{block.line}")
    for block in blocks(page, "toml"):
        tomllib.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"
               and f"]({page.name})" not in index]
    assert not missing, f"add to docs/README.md: {', '.join(missing)}"


@pytest.fixture
def house(tiny_coco: Path, stores: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ``make demo`` leaves, tiny; the folder to work in."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "config", "config")
    shutil.copytree(tiny_coco, "data/demo/coco", ignore=shutil.ignore_patterns("*.h5"))
    pictures = sorted(Path("data/demo/coco/val2017").glob("*.jpg"))
    shutil.copy(pictures[0], pictures[0].with_name("000010000005.jpg"))
    for split, path in stores.items():
        shutil.copy(path, f"data/demo/{split}.h5")
    config = load_config("config/demo.toml", TINY)
    torch.manual_seed(0)
    Path("checkpoints/demo").mkdir(parents=True)
    torch.save({"model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)},
               "checkpoints/demo/last.pth")
    return tmp_path


RUN = [page for page in PAGES if any("run" in block.words for block in blocks(page, "sh", "python"))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_says_can_be_run(page: Path, house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "sh", "python", "toml"):
        if block.words[0] == "toml" and (name := re.match(r"# (\S+\.toml)\n", block.text)):
            Path(name[1]).write_text(block.text, encoding="utf-8")
        if "run" not in block.words:
            continue
        if block.words[0] == "python":
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), {})
            continue
        for words, comment in commands(block.text):
            if not (tool := tool_of(words)):
                continue
            name, arguments = tool
            status = cli.run_tool(name, [*arguments, *QUICK.get(name, [])], prog=name)
            expected = int(status_told[1]) if (status_told := re.match(r"status (\d+)", comment)) else 0
            assert status == expected, f"{page.name}:{block.line}: {shlex.join(words)}\n{capsys.readouterr().err}"


@cache
def program_texts() -> list[str]:
    """All texts in the program, ``...`` where a value is filled in."""
    texts = []
    for path in (ROOT / "posenet").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append("".join(p.value if isinstance(p, ast.Constant) else "..." for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts


def test_the_messages_in_troubleshooting_are_the_programs() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(messages) >= 15
    for message in messages:
        assert any(message in text for text in program_texts()), message


def test_the_checker_finds_what_is_wrong() -> None:
    """Of the checks above: commands that must not pass."""
    for line, fault in [("posenet trian --config x", "no tool trian"),
                        ("python tools/train.py --epoch-count 3", "--epoch-count"),
                        ("python tools/train.py --config config/none.toml", "none.toml"),
                        ("for s in a b; do python tools/predict.py $s; done", "required"),
                        ("X=1 srun -n 2 python tools/train.py --set train.speed=9", "no setting train.speed"),
                        ("posenet train --set train.epochs=many", "train.epochs"), ("make tea", "no target"),
                        ("frobnicate", "no command"), ("python tools/none.py", "no tool none")]:
        with pytest.raises(Exception, match=re.escape(fault)) as caught:
            for words, _ in commands(line):
                check(words)
        assert caught
    assert [words for words, _ in commands("cat > a.toml <<'END'\n[x]\nEND\npip install $(ls)")] == [
        ["cat"], ["pip", "install", "1"]]
    found = list(commands('ids="1 2"\nposenet evaluate --image-ids $ids \\\n   --flip > out.txt && ls # status 2'))
    assert found == [(["posenet", "evaluate", "--image-ids", "1", "2", "--flip"], "status 2"), (["ls"], "status 2")]
