"""The command line: option names, errors, exit status, help and imports."""

from __future__ import annotations

import argparse
import logging
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import posenet
from posenet import __version__
from posenet.cli import main as cli
from posenet.errors import (
    CheckpointError,
    ConfigError,
    ConnectError,
    DataError,
    OtherRankError,
    PosenetError,
    TrainingError,
)
from posenet.settings import Config

WITHOUT_DEFAULT = {
    *("--config", "--set", "--opt-level"),  # replace the defaults of other flags
    *("--output", "--json", "--csv", "--coco", "--heatmaps", "--plots", "--preview", "--fix"),  # write nothing
    *("--images", "--annotations", "--from-annotations", "--show", "--camera", "--check-split"),  # read nothing
    *("--calibrate", "--verify-images", "--verify-annotations"),  # measure nothing more
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
        module = ModuleType("posenet.cli.fake")
        module.run = run

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--checkpoint-path", default="runs", help="folder")
            parser.add_argument("--sync-bn", action=argparse.BooleanOptionalAction, default=False, help="switch")
            parser.add_argument("files", nargs="*", help="files")

        module.add_arguments = add_arguments
        monkeypatch.setitem(sys.modules, "posenet.cli.fake", module)
        monkeypatch.setattr(cli, "TOOLS", {"fake": "Do nothing much."})

    return install


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What ``posenet WORDS --help`` prints."""
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def flags_in_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The flags of a tool and the text that its help has after each; those of its actions, too."""
    text = help_of(words, capsys)
    description = text.partition("\n\n")[2]
    flags = {}
    for entry in re.findall(r"^  -.*(?:\n   .*)*", description, re.MULTILINE):
        names, _, explanation = re.sub(r"\n {20,}", "  ", entry.strip(), count=1).partition("  ")
        flags[re.findall(r"--?[\w-]+", names)[-1]] = f"{names}  {' '.join(explanation.split())}"
    names = re.findall(r"^    ([a-z]+)  ", description, re.MULTILINE) if "\n  action\n" in text else []
    for name in names:
        flags |= flags_in_help([*words, name], capsys)
    return flags


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
    expected = {"checkpoint_path": "a_b", "sync_bn": False, "files": ["my_file"], "quiet": False}
    assert expected.items() <= vars(seen[0]).items()


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


def test_the_overview_shows_the_text_of_every_tool(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and "fake" in out and "Do nothing much." in out


def test_a_tool_does_not_import_the_others(tool: Callable[[Run], None], monkeypatch: pytest.MonkeyPatch) -> None:
    tool(lambda args: None)
    monkeypatch.setattr(cli, "TOOLS", {"absent": "", "fake": ""})
    assert cli.main(["fake"]) == 0


def test_the_version_is_printed(tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"posenet {__version__}\n"


def test_the_overview_lists_all_tools(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0 and all(f"  {name} " in out for name in cli.TOOLS)


def test_the_help_shows_defaults(tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]) -> None:
    tool(raising(AssertionError()))
    with pytest.raises(SystemExit):
        cli.main(["fake", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "folder (default: runs)" in out
    assert "switch (default: off)" in out
    assert "default: False" not in out
    assert "default: None" not in out


@pytest.mark.parametrize("name", cli.TOOLS)
def test_the_help_of_every_flag_has_a_text_and_states_the_default(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = flags_in_help([name], capsys)
    assert "--quiet" in flags and (name != "weights" or "--overwrite" in flags)
    for flag, text in flags.items():
        names, _, explanation = text.partition("  ")
        assert explanation, f"{flag} has no text"
        takes_value = bool(re.search(r"[A-Z{]{2,}|[A-Z]$|\{", names.replace(flag, "")))
        if takes_value and flag not in WITHOUT_DEFAULT and f"[{flag}" in help_usage(name, flag, capsys):
            assert re.search("default: |[Bb]y default", explanation), f"{flag}: state the default"


def help_usage(name: str, flag: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The line of usage, in which optional flags have brackets."""
    return help_of([name], capsys).partition("\n\n")[0]


def test_names_of_tools_in_version_0_4_keep_working(capsys: pytest.CaptureFixture[str]) -> None:
    for old, (tool, action) in cli.OLD_NAMES.items():
        assert tool in cli.TOOLS
        for run in (lambda: cli.main([old, "--help"]), lambda: cli.run_tool(old, ["--help"])):
            with pytest.raises(SystemExit) as caught:
                run()
            assert caught.value.code == 0
            assert f" {action} [-h]" in capsys.readouterr().out


def test_the_help_of_a_flag_names_its_setting_and_the_default_of_that(capsys: pytest.CaptureFixture[str]) -> None:
    epochs = Config().train.epochs
    assert f"(train.epochs; default: {epochs})" in flags_in_help(["train"], capsys)["--epochs"]
    scales = flags_in_help(["predict"], capsys)["--scales"]
    assert "(inference.scales; default: that of the checkpoint, or 1)" in scales


def test_the_negative_form_of_a_switch_works_and_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--no-" not in help_of(["train"], capsys)
    parser = cli.make_parser("train", "train")
    for flags, value in ((["--sync-bn"], True), (["--no-sync-bn"], False), ([], None)):  # None: the setting decides
        assert vars(parser.parse_args(flags))["parallel.sync_bn"] is value


def test_a_mistyped_flag_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["train", "--batchsize", "3"])
    assert caught.value.code == 2
    message = "unrecognized arguments: --batchsize 3; did you mean --batch-size?; see posenet train --help"
    assert capsys.readouterr().err == f"posenet train: error: {message}\n"


def test_an_error_of_another_rank_is_silent_and_one_of_the_network_asks_to_start_again(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(raising(OtherRankError("rank 1 has failed and reports why")))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == ""
    tool(raising(ConnectError("no contact")))
    assert cli.main(["fake"]) == 75
    assert capsys.readouterr().err == "posenet fake: error: no contact\n"
    monkeypatch.setenv("RANK", "3")
    tool(raising(DataError("a.h5 is damaged")))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == "posenet fake: error: rank 3: a.h5 is damaged\n"


def test_without_pytorch_an_error_names_the_package(
    tool: Callable[[Run], None], capsys: pytest.CaptureFixture[str]
) -> None:
    tool(raising(ModuleNotFoundError("No module named 'torch'", name="torch")))
    assert cli.main(["fake"]) == 2
    assert "PyTorch is not installed (the package torch)" in capsys.readouterr().err
    tool(raising(ModuleNotFoundError("No module named 'other'", name="other")))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["fake"])


def test_python_m_posenet_is_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "posenet", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"posenet {__version__}\n")


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
