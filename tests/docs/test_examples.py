"""The documentation: every command in it parses, files and settings that it names exist, and it is run.

Shell blocks are run, and Python blocks that begin with ```` ```python run ````, page by page and block by block, in a
folder that has COCO and its stores, weights, and what ``make demo`` leaves, all of them tiny and drawn. So that it is
quick, networks are small and trainings short, whatever the page says. A comment ``# status 2`` behind a command tells
that it is to end so. ``NOT_RUN`` names the commands that cannot run here, and why; they are only parsed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
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
from posenet.data.store.build import build_store
from posenet.model.published_names import to_published
from posenet.settings import config_to_dict, load_config
from posenet.synthetic.dataset import write_dataset

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / folder / "README.md" for folder in ("config", "data", "checkpoints")),
    ]
)
OTHER_COMMANDS = {
    "apt-get",
    "cat",
    "cd",
    "cp",
    "curl",
    "docker",
    "echo",
    "export",
    "ffmpeg",
    "find",
    "git",
    "grep",
    "head",
    "kill",
    "less",
    "ls",
    "mkdir",
    "mv",
    "nvidia-smi",
    "pip",
    "ps",
    "rsync",
    "sbatch",
    "scancel",
    "scp",
    "source",
    "squeue",
    "ssh",
    "sudo",
    "tail",
    "tar",
    "tensorboard",
    "unzip",
    "wget",
}
"""Commands that are not ours and are taken as they are."""
SHELLS = ("sh", "bash", "shell", "console")
KEYWORDS = {"do", "done", "else", "fi", "then"}
TINY = ["model.stacks=1", "model.width=16", "model.growth=2"]
SMALL = ["--set", *TINY, "inference.height=64"]
QUICK = {
    "train": [
        "--max-steps",
        "12",
        *SMALL,
        "train.epochs=1",
        "train.input_size=64",
        "train.batch_size=2",
        "train.channels_last=false",
        "data.workers=0",
        "log.tensorboard=false",
        "log.curves=false",
    ],
    "evaluate": SMALL,
    "predict": SMALL,
    "benchmark": ["--quick"],
    "build-hdf5": ["--workers", "1"],
    "make-synthetic": ["--train", "6", "--val", "2"],
}
"""What is added to the commands that are run."""
IDS = (790, 37666, 183872, 211325, 256353, 442450, 463557, 538113)
"""Images of COCO that pages name."""

NOT_RUN = {
    r"make (demo|test|setup)": "installs by pip; what demo calls is run here and by the other tests",
    r"source ": "the environment that make setup makes",
    r"pip install ": "downloads",
    r"data/download_coco\.sh": "downloads 19 GB",
    r"tensorboard ": "a server that does not end",
    r"torchrun ": "several processes or machines; test_torchrun.py runs it",
    r"srun ": "needs SLURM; test_launch.py has its environment",
    r"python tools/train_distributed\.py --nproc": "starts processes; test_torchrun.py runs it",
}
"""Commands that are not run, as patterns of how they begin, and why."""
ELSEWHERE = {"predicting.md": "test_docs_predicting.py runs all of it, with a camera and a window made up"}
"""Pages that another test runs."""


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
            return script[1].replace("_", "-"), words[i + 1 :]
    return (words[1], words[2:]) if words[0] == "posenet" and words[1] != "--help" else None


@cache
def parser_of(tool: str) -> argparse.ArgumentParser:
    assert tool in cli.TOOLS, f"there is no tool {tool}"
    return cli.make_parser(import_module(f"posenet.cli.{cli.TOOLS[tool]}"), tool)


@cache
def made_here() -> set[str]:
    """Files that a page tells the reader to make."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    return {
        name
        for text in texts
        for name in re.findall(r"--output[ =](\S+)|^# (\S+\.toml)$", text, re.MULTILINE)
        for name in name
        if name
    }


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
    load_config(
        ROOT / file if file and (ROOT / file).is_file() else None,
        [pair for pair in pairs if not pair.startswith("model.skeleton=")],
    )


def check(words: list[str]) -> None:
    if tool := tool_of(words):
        check_tool(*tool)
    elif words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert all(word in targets or "=" in word for word in words[1:]), f"make has no target {words[1:]}"
    elif words[0] in ("python", "python3"):
        assert words[1][0] == "-" or (ROOT / words[1]).is_file(), f"{words[1]} does not exist"
    else:
        assert words[0] in {*OTHER_COMMANDS, "posenet"} or (ROOT / words[0]).is_file(), (
            f"{words[0]} is no command that docs use"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_parses(page: Path) -> None:
    for block in blocks(page, *SHELLS):
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
    missing = [
        page.name
        for page in (ROOT / "docs").glob("*.md")
        if page.name != "README.md" and f"]({page.name})" not in index
    ]
    assert not missing, f"add to docs/README.md: {', '.join(missing)}"


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages take for granted, tiny."""
    folder = tmp_path_factory.mktemp("house")
    with contextlib.chdir(folder):
        shutil.copytree(ROOT / "config", "config")
        _furnish_data()
        config = load_config("config/demo.toml", TINY)
        torch.manual_seed(0)
        weights = PoseNet.from_config(config).state_dict()
        Path("checkpoints").mkdir()
        torch.save({"weights": to_published(weights)}, "checkpoints/PoseNet_52_epoch.pth")
        for run in ("simplepose_384", "simplepose_512"):
            Path("checkpoints", run).mkdir()
            torch.save({"model": weights, "config": config_to_dict(config)}, f"checkpoints/{run}/best.pth")
        assert (
            cli.run_tool(
                "train",
                [
                    "--config",
                    "config/demo.toml",
                    *QUICK["train"],
                    "data.train=data/demo/train.h5",
                    "data.val=data/demo/val.h5",
                ],
            )
            == 0
        )
    return folder


def _furnish_data() -> None:
    """The demo's data; and COCO, which is the same images under numbers that pages name."""
    write_dataset(Path("data/demo/coco"), train=len(IDS), val=2, seed=7, workers=1)
    shutil.copytree("data/demo/coco", "data/coco")
    pictures = sorted(Path("data/demo/coco/val2017").glob("*.jpg"))
    shutil.copy(pictures[0], pictures[0].with_name("000010000005.jpg"))
    shutil.copytree(pictures[0].parent, "data/coco/test2017")
    shutil.copytree(pictures[0].parent, "photos")
    annotations = Path("data/coco/annotations")
    shutil.copy(annotations / "person_keypoints_val2017.json", annotations / "image_info_test-dev2017.json")
    train = annotations / "person_keypoints_train2017.json"
    content = json.loads(train.read_text(encoding="utf-8"))
    renamed = {image["id"]: name for image, name in zip(content["images"], IDS, strict=True)}
    for image in content["images"]:
        image["id"] = renamed[image["id"]]
    for annotation in content["annotations"]:
        annotation["image_id"] = renamed[annotation["image_id"]]
    train.write_text(json.dumps(content), encoding="utf-8")
    for split in ("train", "val"):
        for folder, store in (("data/coco", f"data/{split}2017.h5"), ("data/demo/coco", f"data/demo/{split}.h5")):
            build_store(
                Path(folder, f"{split}2017"),
                Path(folder, f"annotations/person_keypoints_{split}2017.json"),
                Path(store),
                workers=1,
            )


@pytest.fixture
def house(furnished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the furnished folder, to work in."""
    shutil.copytree(furnished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def why_not_run(words: list[str]) -> str | None:
    line = " ".join(words)
    return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, line)), None)


def run_command(words: list[str]) -> int:
    """Run one command of a page in this process, small; its exit status."""
    if tool := tool_of(words):
        name, arguments = tool
        quick = list(QUICK.get("train" if name.startswith("train") else name, []))
        if name == "build-hdf5" and "--images" in arguments:
            quick.append("--overwrite")  # the house has the stores that the page says how to make
        if name.startswith("train") and not {"--resume", "--checkpoint-path"} & set(arguments):
            # The house has the runs that the page says how to make.
            config = Path(arguments[arguments.index("--config") + 1])
            shutil.rmtree(Path("checkpoints", config.stem), ignore_errors=True)
        return cli.run_tool(name, [*arguments, *quick], prog=name)
    assert words[0] == "posenet", f"neither run nor in NOT_RUN: {shlex.join(words)}"
    with pytest.raises(SystemExit) as end:
        cli.main(words[1:])
    return int(end.value.code or 0)


RUN = [
    page
    for page in PAGES
    if page.name not in ELSEWHERE
    and (blocks(page, *SHELLS) or any("run" in block.words for block in blocks(page, "python")))
]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_says_can_be_run(page: Path, house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, *SHELLS, "python", "toml"):
        if block.words[0] == "toml" and (name := re.match(r"# (\S+\.toml)\n", block.text)):
            Path(name[1]).write_text(block.text, encoding="utf-8")
        if block.words[0] == "python" and "run" in block.words:
            exec(compile(block.text, f"{page.name}:{block.line}", "exec"), {})
        if block.words[0] not in SHELLS:
            continue
        for words, comment in commands(block.text):
            if why_not_run(words):
                continue
            status = run_command(words)
            expected = int(status_told[1]) if (status_told := re.match(r"status (\d+)", comment)) else 0
            assert status == expected, f"{page.name}:{block.line}: {shlex.join(words)}\n{capsys.readouterr().err}"


def test_every_command_is_run_or_has_a_reason_not_to_be() -> None:
    found = [
        words
        for page in PAGES
        if page.name not in ELSEWHERE
        for block in blocks(page, *SHELLS)
        for words, _ in commands(block.text)
    ]
    for words in found:
        assert tool_of(words) or words[0] == "posenet" or why_not_run(words), (
            f"{shlex.join(words)}: this test cannot run it; name it in NOT_RUN with the reason"
        )
    for pattern in NOT_RUN:
        assert any(re.match(pattern, " ".join(words)) for words in found), f"no page has {pattern}: leave it out"
    assert {page.name for page in PAGES} >= set(ELSEWHERE)


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
    for line, fault in [
        ("posenet trian --config x", "no tool trian"),
        ("python tools/train.py --epoch-count 3", "--epoch-count"),
        ("python tools/train.py --config config/none.toml", "none.toml"),
        ("for s in a b; do python tools/predict.py $s; done", "required"),
        ("X=1 srun -n 2 python tools/train.py --set train.speed=9", "no setting train.speed"),
        ("posenet train --set train.epochs=many", "train.epochs"),
        ("make tea", "no target"),
        ("frobnicate", "no command"),
        ("python tools/none.py", "no tool none"),
    ]:
        with pytest.raises(Exception, match=re.escape(fault)) as caught:
            for words, _ in commands(line):
                check(words)
        assert caught
    assert [words for words, _ in commands("cat > a.toml <<'END'\n[x]\nEND\npip install $(ls)")] == [
        ["cat"],
        ["pip", "install", "1"],
    ]
    found = list(commands('ids="1 2"\nposenet evaluate --image-ids $ids \\\n   --flip > out.txt && ls # status 2'))
    assert found == [(["posenet", "evaluate", "--image-ids", "1", "2", "--flip"], "status 2"), (["ls"], "status 2")]
