"""The command line: option spelling, errors, exit status, help, and what importing the package costs."""

from __future__ import annotations

import argparse
import json
import logging
import pydoc
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from tqdm import tqdm

import posenet
from posenet import __version__
from posenet.cli import main as cli
from posenet.errors import CheckpointError, ConfigError, DataError, PosenetError, TrainingError

TOOLS = [
    "train",
    "train-parallel",
    "train-distributed",
    "evaluate",
    "predict",
    "plot",
    "build-hdf5",
    "make-synthetic",
    "benchmark",
    "skeleton",
    "lint-annotations",
    "import-weights",
    "export-weights",
    "export-onnx",
]
PRESENT = [name for name in TOOLS if find_spec(f"posenet.cli.{name.replace('-', '_')}")]
Run = Callable[[argparse.Namespace], None]


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = handlers, level


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Make ``fake`` the only tool; it takes two options and files, and does what the test says."""

    def install(run: Run) -> None:
        module = ModuleType("posenet.cli.fake", "Do nothing much.\n\nNever shown.")
        module.run = run

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--checkpoint-path", default="runs", help="folder")
            parser.add_argument("--sync-bn", action=argparse.BooleanOptionalAction, default=False, help="switch")
            parser.add_argument("files", nargs="*", help="files")

        module.add_arguments = add_arguments
        monkeypatch.setitem(sys.modules, "posenet.cli.fake", module)
        monkeypatch.setattr(cli, "TOOLS", ("fake",))

    return install


def flags(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and positional arguments, those of subcommands included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from flags(subcommand)
        else:
            yield action


def failing(error: BaseException) -> Run:
    def run(_: argparse.Namespace) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    "words",
    [
        ["--checkpoint-path", "a_b", "--no-sync-bn", "my_file"],
        ["--checkpoint_path", "a_b", "--no_sync_bn", "my_file"],
        ["--checkpoint_path=a_b", "--no_sync-bn", "my_file"],
        ["--checkpoint-path=a_b", "my_file"],
    ],
)
@pytest.mark.parametrize("through", ["posenet", "script"])
def test_options_take_dashes_and_underscores_and_values_keep_theirs(
    tool: Callable[[Run], None], words: list[str], through: str
) -> None:
    seen: list[argparse.Namespace] = []
    tool(seen.append)
    status = cli.main(["fake", *words]) if through == "posenet" else cli.run_tool("fake", words)
    assert status == 0
    assert vars(seen[0]) == {"checkpoint_path": "a_b", "sync_bn": False, "files": ["my_file"], "log_format": "text"}


def test_what_follows_two_dashes_is_no_option(tool: Callable[[Run], None]) -> None:
    seen: list[argparse.Namespace] = []
    tool(seen.append)
    words = ["--sync_bn", "--", "--my_file"]
    assert cli.run_tool("fake", words) == cli.main(["fake", *words]) == 0
    assert [(args.sync_bn, args.files) for args in seen] == [(True, ["--my_file"])] * 2


def test_without_arguments_those_of_the_process_are_taken(
    tool: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[argparse.Namespace] = []
    tool(seen.append)
    monkeypatch.setattr(sys, "argv", ["fake.py", "--checkpoint_path", "x"])
    assert cli.run_tool("fake") == 0
    monkeypatch.setattr(sys, "argv", ["posenet", "fake", "--checkpoint_path", "y"])
    assert cli.main() == 0
    assert [args.checkpoint_path for args in seen] == ["x", "y"]


@pytest.mark.parametrize(
    "error",
    [
        kind("photo.jpg is damaged;\n  delete it")
        for kind in (PosenetError, ConfigError, DataError, CheckpointError, TrainingError)
    ],
    ids=repr,
)
def test_bad_input_is_one_line_on_standard_error_and_status_2(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str], error: PosenetError
) -> None:
    tool(failing(error))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr() == ("", "posenet fake: error: photo.jpg is damaged; delete it\n")


@pytest.mark.parametrize(
    "error, message",
    [
        (FileNotFoundError(2, "No such file or directory", "a.h5"), "No such file or directory: a.h5"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("unable to open file"), "unable to open file"),
    ],
)
def test_an_error_of_the_system_is_one_line_too(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str], error: OSError, message: str
) -> None:
    tool(failing(error))
    assert cli.run_tool("fake", [], prog="fake") == 2
    assert capsys.readouterr() == ("", f"fake: error: {message}\n")


def test_as_json_standard_error_holds_one_object_a_line_and_no_bars(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: argparse.Namespace) -> None:
        for _ in tqdm(range(3)):
            logging.getLogger("posenet.any").info("half %s", "done", extra={"values": {"loss": 0.5}})
        warnings.warn("odd", stacklevel=1)
        raise DataError("a.jpg is damaged; delete it")

    tool(run)
    before = logging.root.handlers[:], logging.root.level
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert cli.main(["fake", "--log-format", "json"]) == 2
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["info"] * 3 + ["warning", "error"]
    assert lines[0] | {"time": ""} == {
        "time": "",
        "level": "info",
        "logger": "posenet.any",
        "message": "half done",
        "loss": 0.5,
    }
    assert "odd" in lines[3]["message"] and lines[4]["message"] == "error: a.jpg is damaged; delete it"
    assert (logging.root.handlers, logging.root.level) == before


def test_an_interrupt_is_status_130_without_traceback(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(failing(KeyboardInterrupt()))
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err.strip() == "posenet fake: interrupted"


def test_a_programming_error_keeps_its_traceback(tool: Callable[[Run], None]) -> None:
    tool(failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake"])


def test_no_words_at_all_show_the_overview(tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    tool(failing(AssertionError()))
    assert cli.main([]) == 2
    assert "Do nothing much." in capsys.readouterr().err


@pytest.mark.parametrize("words", [["fake", "--unknown"], ["nonsense"]])
def test_words_that_do_not_parse_are_status_2(tool: Callable[[Run], None], words: list[str]) -> None:
    tool(failing(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2


def test_the_overview_shows_every_tool_with_its_first_line(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(failing(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and "fake" in out and "Do nothing much." in out and "Never shown" not in out


def test_a_tool_runs_without_importing_the_others(tool: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch) -> None:
    tool(lambda args: None)
    monkeypatch.setattr(cli, "TOOLS", ("absent", "fake"))
    assert cli.main(["fake"]) == 0


def test_the_version_is_that_of_the_package(tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    tool(failing(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"posenet {__version__}\n"


def test_all_tools_are_known() -> None:
    assert sorted(cli.TOOLS) == sorted(TOOLS)


@pytest.mark.skipif(PRESENT != TOOLS, reason="not every tool is there yet")
def test_the_real_overview_lists_all_tools(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and all(f"  {name} " in out for name in TOOLS)


@pytest.mark.parametrize("name", PRESENT)
def test_every_flag_of_every_tool_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run_tool(name, ["--help"])
    assert caught.value.code == 0 and "--help" in capsys.readouterr().out
    parser = argparse.ArgumentParser()
    cli.load_tool(name).add_arguments(parser)
    assert [action.dest for action in flags(parser) if not action.help] == []


def test_help_shows_the_public_names_and_the_example() -> None:
    text = pydoc.plain(pydoc.render_doc(posenet))
    assert "Predictor.from_checkpoint(" in text and "Every error that a user can fix" in text
    assert dir(posenet) == sorted(posenet.__all__)
    for name in posenet.__all__:
        assert re.search(rf"^    (class )?{name}\(", text, re.MULTILINE), name
        assert getattr(posenet, name).__doc__, name
    assert "sigmas=(" not in text


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(posenet.__file__).parent / "py.typed").is_file()


def test_importing_the_package_loads_neither_torch_nor_opencv() -> None:
    code = (
        "import sys, posenet, posenet.model, posenet.data, posenet.inference, posenet.cli, posenet.errors\n"
        "sys.exit(', '.join({'torch', 'cv2', 'h5py', 'pycocotools'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
