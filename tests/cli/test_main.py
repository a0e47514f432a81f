"""The command line: option names, errors, exit status, help and imports."""

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
from pathlib import Path
from types import ModuleType

import pytest
from tqdm import tqdm

import posenet
from posenet import __version__
from posenet.cli import main as cli
from posenet.cli import options
from posenet.errors import CheckpointError, ConfigError, DataError, PosenetError, TrainingError
from posenet.settings import load_config

TOOLS = [
    "train",
    "train-parallel",
    "train-distributed",
    "diagnose",
    "evaluate",
    "predict",
    "plot",
    "build-hdf5",
    "make-synthetic",
    "benchmark",
    "skeleton",
    "lint-annotations",
    "import-annotations",
    "import-weights",
    "export-weights",
    "export-onnx",
    "weights",
]
WITHOUT_DEFAULT = {
    *("--config", "--set", "--opt-level"),  # replace the defaults of other flags
    *("--output", "--json", "--csv", "--coco", "--heatmaps", "--plots", "--preview", "--fix"),  # write nothing
    "--markdown",  # writes nothing
    *("--images", "--annotations", "--from-annotations", "--show", "--camera", "--check-split"),  # read nothing
    *("--h5", "--processes", "--calibrate", "--verify-images", "--verify-annotations"),  # measure nothing more
}
"""Flags that have no default by nature: without them, the tool leaves something out."""
Run = Callable[[argparse.Namespace], None]


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = handlers, level


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Callable[[Run], None]:
    """Install ``fake`` as the only tool, with two options and files; the test gives its ``run``."""

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


def all_arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """All options and positional arguments, including those of subcommands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from all_arguments(subcommand)
        else:
            yield action


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subcommand in action.choices.values():
                yield from all_parsers(subcommand)


def has_default(action: argparse.Action) -> bool:
    """Whether something happens without a flag that its help must state."""
    is_value_or_switch = action.nargs != 0 or isinstance(action, argparse.BooleanOptionalAction)
    is_option = bool(action.option_strings) and not action.required and action.help != argparse.SUPPRESS
    return is_option and is_value_or_switch and action.option_strings[-1] not in WITHOUT_DEFAULT


def expanded_help(tool: str, option: str) -> str:
    """The help text of an option, as the formatter of its parser shows it."""
    parser = cli.make_parser(cli.load_tool(tool), tool)
    (action,) = [action for action in parser._actions if option in action.option_strings]
    return parser._get_formatter()._expand_help(action)


def raising(error: BaseException) -> Run:
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
def test_option_names_may_have_underscores_and_values_are_unchanged(
    tool: Callable[[Run], None], words: list[str], through: str
) -> None:
    seen: list[argparse.Namespace] = []
    tool(seen.append)
    status = cli.main(["fake", *words]) if through == "posenet" else cli.run_tool("fake", words)
    assert status == 0
    common = {"log_format": "text", "quiet": False}
    assert vars(seen[0]) == {"checkpoint_path": "a_b", "sync_bn": False, "files": ["my_file"], **common}


def test_words_after_two_dashes_are_not_options(tool: Callable[[Run], None]) -> None:
    seen: list[argparse.Namespace] = []
    tool(seen.append)
    words = ["--sync_bn", "--", "--my_file"]
    assert cli.run_tool("fake", words) == cli.main(["fake", *words]) == 0
    assert [(args.sync_bn, args.files) for args in seen] == [(True, ["--my_file"])] * 2


def test_the_default_arguments_are_those_of_the_process(
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
def test_bad_input_is_reported_in_one_line_with_status_2(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str], error: PosenetError
) -> None:
    tool(raising(error))
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
def test_an_operating_system_error_is_reported_in_one_line(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str], error: OSError, message: str
) -> None:
    tool(raising(error))
    assert cli.run_tool("fake", [], prog="fake") == 2
    assert capsys.readouterr() == ("", f"fake: error: {message}\n")


def test_in_json_format_standard_error_holds_one_object_per_line(
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


def test_an_interrupt_has_status_130_and_no_traceback(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(raising(KeyboardInterrupt()))
    assert cli.main(["fake"]) == 130
    assert capsys.readouterr().err.strip() == "posenet fake: interrupted"


def test_a_programming_error_keeps_its_traceback(tool: Callable[[Run], None]) -> None:
    tool(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["fake"])


def test_without_arguments_the_overview_is_shown(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(raising(AssertionError()))
    assert cli.main([]) == 2
    assert "Do nothing much." in capsys.readouterr().err


@pytest.mark.parametrize("words", [["fake", "--unknown"], ["nonsense"]])
def test_arguments_that_do_not_parse_have_status_2(tool: Callable[[Run], None], words: list[str]) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2


def test_the_overview_shows_the_first_line_of_every_tool(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and "fake" in out and "Do nothing much." in out and "Never shown" not in out


def test_a_tool_does_not_import_the_others(tool: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch) -> None:
    tool(lambda args: None)
    monkeypatch.setattr(cli, "TOOLS", ("absent", "fake"))
    assert cli.main(["fake"]) == 0


def test_the_version_is_printed(tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"posenet {__version__}\n"


def test_the_tools_are_these() -> None:
    assert sorted(cli.TOOLS) == sorted(TOOLS)


def test_the_overview_lists_all_tools(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and all(f"  {name} " in out for name in TOOLS)


def test_the_help_shows_defaults(tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit):
        cli.main(["fake", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "folder (default: runs)" in out
    assert "switch (default: off)" in out
    assert "(default: text)" in out
    assert "default: False" not in out
    assert "default: None" not in out


@pytest.mark.parametrize("name", TOOLS)
def test_every_flag_of_every_tool_has_a_help_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.run_tool(name, ["--help"])
    assert caught.value.code == 0 and "--help" in capsys.readouterr().out
    parser = argparse.ArgumentParser()
    cli.load_tool(name).add_arguments(parser)
    assert [action.dest for action in all_arguments(parser) if not action.help] == []


@pytest.mark.parametrize("name", TOOLS)
def test_the_help_of_every_flag_states_its_default(name: str) -> None:
    missing = []
    for parser in all_parsers(cli.make_parser(cli.load_tool(name), name)):
        formatter = parser._get_formatter()
        for action in parser._actions:
            if has_default(action) and not re.search("default: |[Bb]y default", formatter._expand_help(action)):
                missing.append(f"{parser.prog} {action.option_strings[-1]}")
    assert missing == [], "state the default, or add the flag to WITHOUT_DEFAULT if it has none by nature"


def test_a_flag_that_overrides_a_setting_states_the_default_of_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "Config", lambda: load_config(None, ["train.epochs=77", "inference.scales=[0.5, 2]"]))
    assert "(train.epochs; default: 77)" in expanded_help("train", "--epochs")
    assert "(inference.scales; default: that of the checkpoint, or 0.5 2)" in expanded_help("predict", "--scales")


def test_the_help_of_the_package_shows_the_public_names_and_an_example() -> None:
    text = pydoc.plain(pydoc.render_doc(posenet))
    assert "Predictor.from_checkpoint(" in text and "Every error that a user can fix" in text
    assert dir(posenet) == sorted(posenet.__all__)
    for name in posenet.__all__:
        assert re.search(rf"^    (class )?{name}\(", text, re.MULTILINE), name
        assert getattr(posenet, name).__doc__, name
    assert "sigmas=(" not in text


def test_the_package_is_marked_as_typed() -> None:
    assert (Path(posenet.__file__).parent / "py.typed").is_file()


def test_importing_the_package_imports_neither_torch_nor_opencv() -> None:
    code = (
        "import sys, posenet, posenet.model, posenet.data, posenet.inference, posenet.cli, posenet.errors\n"
        "sys.exit(', '.join({'torch', 'cv2', 'h5py', 'pycocotools'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
