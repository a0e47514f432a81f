"""The command line: option names, errors, exit status, help and imports."""

import argparse
import io
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
from torch.utils.data import DataLoader

import posenet
from posenet.cli import main as cli
from posenet.cli.main import log_to_stderr, print_message
from posenet.errors import ConnectError, DataError, OtherRankError, PosenetError
from posenet.progress_bar import progress_bar
from tests.helpers.process_runs import fork_process, wait_for_exit

Run = Callable[[argparse.Namespace], None]
Install = Callable[[Run], None]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install ``fake`` as the only tool, with two options and files; the test gives its ``run``."""

    def install(run: Run) -> None:
        module = ModuleType("posenet.cli.fake")
        module.run = run

        def add_arguments(parser: argparse.ArgumentParser) -> None:
            parser.add_argument("--checkpoint-path", default="runs", help="folder")
            parser.add_argument("--sync-bn", action="store_true", help="switch")
            parser.add_argument("files", nargs="*", help="files")

        module.add_arguments = add_arguments
        monkeypatch.setitem(sys.modules, "posenet.cli.fake", module)
        monkeypatch.setattr(cli, "TOOLS", {"fake": "Do nothing much."})

    return install


def help_of(words: list[str], capsys: Capture) -> str:
    """What ``posenet WORDS --help`` prints."""
    with pytest.raises(SystemExit) as caught:
        cli.main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def raising(error: BaseException) -> Run:
    def run(_: argparse.Namespace) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--checkpoint_path", "a_b", "my_file"], ("a_b", False, ["my_file"])),
        (["--checkpoint_path=a_b", "my_file"], ("a_b", False, ["my_file"])),
        (["--sync_bn", "--", "--my_file"], ("runs", True, ["--my_file"])),  # no options after two dashes
    ],
)
def test_option_names_may_have_underscores_and_values_are_unchanged(
    tool: Install, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: tuple[str, bool, list[str]]
) -> None:
    seen: list[argparse.Namespace] = []
    tool(seen.append)
    assert cli.main(["fake", *words]) == 0
    monkeypatch.setattr(sys, "argv", ["fake.py", *words])
    assert cli.run_tool("fake") == 0
    assert [(args.checkpoint_path, args.sync_bn, args.files) for args in seen] == [expected] * 2


NO_MEMORY = "; lower the batch size and the number of workers"


@pytest.mark.parametrize(
    "error, message",
    [
        (PosenetError("photo.jpg is damaged;\n  delete it"), "photo.jpg is damaged; delete it"),
        (FileNotFoundError(2, "No such file", "a.h5"), "No such file: a.h5"),
        (OSError(28, "Full", "a.json"), "Full: a.json; free disk space, or choose another folder"),
        (OSError("unable to open file"), "unable to open file"),
        (MemoryError(), f"too little memory{NO_MEMORY}"),
        (RuntimeError("can't allocate memory\nat 0x7f"), f"too little memory (can't allocate memory){NO_MEMORY}"),
    ],
    ids=repr,
)
def test_an_error_is_one_line_with_status_2(tool: Install, capsys: Capture, error: BaseException, message: str) -> None:
    tool(raising(error))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr() == ("", f"posenet fake: error: {message}\n")


@pytest.mark.parametrize(
    "error, status, message",
    [
        (KeyboardInterrupt(), 130, "posenet fake: interrupted"),
        (ConnectError("no contact"), 75, "posenet fake: error: no contact"),
        (ModuleNotFoundError(name="torch"), 2, "PyTorch is not installed"),
        (ModuleNotFoundError(name="posenet.training.teacher"), 2, "teacher is not in this installation"),
    ],
)
def test_other_ends_have_a_status_of_their_own(
    tool: Install, capsys: Capture, error: BaseException, status: int, message: str
) -> None:
    tool(raising(error))
    assert cli.main(["fake"]) == status
    line = capsys.readouterr().err
    assert message in line and line.count("\n") == 1


def test_printed_text_errors_and_warnings_cannot_control_a_terminal(
    tool: Install, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # those of pytest cannot hand this name on to another process
    name = "\x1b[31m\x9b1m\u202egpj.\udce9\x7f\r"

    def run(_: argparse.Namespace) -> None:
        print_message(f"wrote {name}")
        logging.getLogger("posenet").warning("cannot read %s", name)
        warnings.warn(name, stacklevel=1)
        next(iter(progress_bar([0], name)))
        raise DataError(name)

    tool(run)
    assert cli.main(["fake"]) == 2
    with pytest.raises(SystemExit):
        cli.main(["fake", f"--{name}"])
    output, errors = capsys.readouterr()
    assert output == "wrote ?[31m?1m?gpj.???\n"
    assert errors.count("?[31m?1m?gpj.??") == 4 and "WARNING: cannot read ?[31m" in errors
    assert (output + errors).replace("\n", "").isprintable()


def test_more_data_workers_than_cores_are_no_warning(tool: Install, capsys: Capture) -> None:
    def run(_: argparse.Namespace) -> None:
        DataLoader([0], num_workers=1000)

    tool(run)
    assert cli.main(["fake"]) == 0
    assert capsys.readouterr().err == ""


def test_text_is_printed_also_where_the_encoding_lacks_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", "strict")
    monkeypatch.setattr("sys.stdout", stream)
    print_message("wrote", Path("é.json"))
    stream.flush()
    assert stream.buffer.getvalue() == b"wrote ?.json\n"


def test_rank_0_shows_everything_and_other_ranks_what_concerns_them_alone(capsys: Capture) -> None:
    def messages(quiet: bool = False, rank: int = 0) -> list[str]:
        level = logging.root.level
        with log_to_stderr(quiet, rank):
            logging.getLogger("posenet.training.train").info("step 3")
            logging.getLogger("posenet.training.train").warning("the loss is bad")
            logging.getLogger("posenet.training.batches").warning("a worker has died")
            logging.getLogger("posenet.training.train").error("out of memory")
            assert progress_bar(range(3)).disable == bool(quiet or rank)
        assert logging.root.level == level
        logging.getLogger("posenet").error("not shown any more")
        return capsys.readouterr().err.splitlines()

    problems = ["WARNING: the loss is bad", "WARNING: a worker has died", "ERROR: out of memory"]
    assert messages() == ["step 3", *problems]
    assert messages(quiet=True) == problems
    assert messages(rank=2) == ["rank 2: WARNING: a worker has died", "rank 2: ERROR: out of memory"]


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    def run_and_open_file() -> None:
        os.closerange(0, 3)
        sys.stdout = sys.stderr = None  # as Python starts
        status = cli.run_tool("annotations", ["lint", "missing.json"])
        is_another = os.open(tmp_path / "a.txt", os.O_CREAT) > 2
        os._exit(status if is_another and os.get_inheritable(2) and sys.stdout is None else 1)

    assert wait_for_exit(fork_process(run_and_open_file, tmp_path / "log.txt")) == 2


def test_a_closed_standard_output_shows_nothing_and_a_full_one_is_named(
    tool: Install, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(lambda _: print_message("text"))
    monkeypatch.setattr("sys.stdout", None)
    assert cli.main(["fake"]) == 0
    for method in ("write", "flush"):
        full = io.StringIO()
        monkeypatch.setattr(full, method, Mock(side_effect=OSError(28, "No space left on device")))
        monkeypatch.setattr("sys.stdout", full)
        assert cli.main(["fake"]) == 2
        assert "No space left on device: standard output;" in capsys.readouterr().err


@pytest.mark.slow
def test_libraries_write_no_lines_about_images_of_their_own() -> None:
    code = (
        "import posenet.cli.main\n"
        "assert posenet.cli.main.run_tool('weights', ['list']) == 0\n"
        "import cv2, io, numpy as np\n"
        "from posenet.images import parse_header\n"
        "for suffix in ('.bmp', '.tif', '.ppm'):\n"
        "    data = cv2.imencode(suffix, np.arange(30_000, dtype=np.uint8).reshape(100, 100, 3))[1]\n"
        "    assert cv2.imdecode(data[: len(data) // 2], cv2.IMREAD_COLOR) is None or suffix == '.tif'\n"
        "exif = np.frombuffer(b'\\xff\\xd8\\xff\\xe1\\0\\x12Exif\\0\\0II*\\0\\x08\\0\\0\\0\\1\\0', np.uint8)\n"
        "jpeg = cv2.imencode('.jpg', np.zeros((8, 8, 3), np.uint8))[1]\n"
        "from posenet.cli.main import log_to_stderr\n"
        "with log_to_stderr():\n"
        "    assert parse_header(io.BytesIO(np.concatenate([exif, jpeg[2:]]))).orientation == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        "annotations lint INPUT",
        "build-hdf5 --images . --annotations INPUT --output a.h5",
        "build-hdf5 --verify --output INPUT",
        "train --config INPUT",
        "train --set data.train=INPUT",
        "predict INPUT --json a.json --checkpoint a.pth",
    ],
)
def test_an_input_that_may_never_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("INPUT")
    assert cli.main(words.split()) == 2
    assert "it is a FIFO" in capsys.readouterr().err.splitlines()[-1]


def test_of_several_processes_the_one_that_fails_reports_it_with_its_rank(
    tool: Install, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool(raising(OtherRankError("rank 1 has failed and reports why")))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    tool(raising(DataError("a.h5 is damaged")))
    assert cli.main(["fake"]) == 2
    assert capsys.readouterr().err == "posenet fake: error: rank 3: a.h5 is damaged\n"


@pytest.mark.parametrize("error", [ZeroDivisionError(), ModuleNotFoundError("No module named 'other'", name="other")])
def test_a_programming_error_keeps_its_traceback(tool: Install, error: Exception) -> None:
    tool(raising(error))
    with pytest.raises(type(error)):
        cli.main(["fake"])


@pytest.mark.parametrize(
    "words, message",
    [
        ("nonsense", "known: "),
        ("trian", "did you mean train?"),
        (__file__, "posenet predict INPUT"),
        ("--nonsense", "see posenet --help"),
        ("train --max 3", "--max is not known here"),
        ("train --patience 3", "--set train.patience=VALUE"),
        ("evaluate --images a --patience 3", "--annotations"),  # it has no such setting
        ("annotations lint a.json --imag x", "--imag is not known here"),
        ("train --set a.b=c data.yaml", "'data.yaml' is not KEY=VALUE"),
        ("predict --scales 0.5 1 a.png", "'a.png'"),
        # words of other programs
        ("train --master_addr=a --master_port 1", "torchrun"),
        ("train --gpus 2", "--nproc"),
        ("train --nproc 2", "train-distributed"),
        ("train --num-workers 4", "data.workers"),
        ("predict --source a.jpg", "without a flag"),
    ],
)
def test_arguments_that_do_not_parse_are_one_line_with_status_2(capsys: Capture, words: str, message: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(words.split())
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "train-distributed --local_rank=0",  # as torch.distributed.launch writes it
        "train-parallel --local-rank=0",
        "train --no-sync-bn --loss-scale 128",
        "train --freeze --amp -f 5 -w",  # switches in recipes for Apex
    ],
)
def test_the_training_tools_take_flags_of_launchers_and_of_apex(words: str, capsys: Capture) -> None:
    if words.split()[0] not in cli.TOOLS:
        pytest.skip("needs several processes")
    assert cli.main(words.split()) == 2
    assert "data.train is not set" in capsys.readouterr().err


def test_the_overview_lists_all_tools_and_is_shown_without_arguments(capsys: Capture) -> None:
    overview = help_of([], capsys)
    for name, text in cli.TOOLS.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", overview, re.MULTILINE), name
    assert cli.main([]) == 2
    assert capsys.readouterr().err == overview


def test_the_package_shows_its_public_names_and_is_typed() -> None:
    assert dir(posenet) == sorted(posenet.__all__)
    assert all(getattr(posenet, name).__doc__ for name in posenet.__all__)
    assert (Path(posenet.__file__).parent / "py.typed").is_file()


def test_help_and_wrong_input_are_answered_without_pytorch(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.json").write_text("{}")
    cases = {
        **{f"{tool} --help": 0 for tool in cli.TOOLS},
        "train --unknown": 2,
        "train --set model.stack=2": 2,
        "train --set data.train=missing.h5": 2,
        "train-distributed --nproc 2 --config a.toml": 2,
        "build-hdf5 --images folder --annotations missing.json --output x.h5": 2,
        "export-onnx --checkpoint missing.pth --output x.onnx": 2,
        "evaluate --checkpoint missing.pth --images folder --annotations a.json": 2,
        "evaluate --nproc 2 --checkpoint missing.pth --images folder --annotations a.json": 2,
        "predict a.json --checkpoint missing.pth --json out.json": 2,
        "weights export missing.pth --output x.pth": 2,
    }
    cases = {words: status for words, status in cases.items() if words.split()[0] in cli.TOOLS}
    code = f"""
import sys
from posenet.cli.main import main
for words, expected in {cases!r}.items():
    try:
        status = main(words.split())
    except SystemExit as error:
        status = error.code
    assert (status, "torch" in sys.modules) == (expected, False), words
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == sum(cases.values()) // 2  # one line for each error
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "a.json"}


def test_importing_the_package_imports_neither_torch_nor_opencv() -> None:
    code = (
        "import sys, posenet, posenet.model, posenet.data, posenet.inference, posenet.cli, posenet.errors\n"
        "sys.exit(', '.join({'torch', 'cv2', 'h5py', 'pycocotools'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_during_the_import_of_the_command_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from posenet.__main__ import main

    with monkeypatch.context() as patch:
        patch.setattr("builtins.__import__", Mock(side_effect=KeyboardInterrupt))
        status = main()
    assert (status, capsys.readouterr().err) == (130, "posenet: interrupted\n")


@pytest.mark.parametrize("words", [["docs"], ["docs", "settings"]])
def test_a_tool_ends_without_a_message_when_the_reader_of_its_output_has_ended(words: list[str]) -> None:
    """As in ``posenet docs | head``."""
    command = [sys.executable, "-m", "posenet", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + 13  # that of SIGPIPE
