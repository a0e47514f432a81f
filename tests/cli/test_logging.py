"""Messages of the command line: which process shows what."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from pathlib import Path

import pytest

from posenet.cli.logging_setup import log_to_stderr, report_error
from posenet.cli.main import run_tool
from posenet.progress_bar import progress_bar
from tests.helpers.process_runs import fork_process, wait_for_exit


def messages(capsys: pytest.CaptureFixture[str], *, quiet: bool = False, rank: int = 0) -> list[str]:
    """What standard error shows of five messages."""
    handlers, level = logging.root.handlers[:], logging.root.level
    logging.root.handlers[:] = []
    logging.root.setLevel(logging.ERROR)
    try:
        with log_to_stderr(quiet, rank):
            logging.getLogger("posenet.training.train").info("step 3")
            logging.getLogger("posenet.training.train").warning("the loss is bad")
            logging.getLogger("posenet.training.batches").warning("a worker has died")
            logging.getLogger("posenet.training.train").error("out of memory")
            assert progress_bar(range(3)).disable == bool(quiet or rank)
            report_error("posenet train", "error: no data")
        assert logging.root.handlers == [] and logging.root.level == logging.ERROR
    finally:
        logging.root.handlers[:], logging.root.level = handlers, level
    return capsys.readouterr().err.splitlines()


def test_a_program_that_shows_messages_itself_gets_each_once_and_keeps_its_capture_of_warnings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("posenet"), "level", logging.NOTSET)
    handlers, level = logging.root.handlers[:], logging.root.level
    logging.root.handlers[:] = [logging.StreamHandler(sys.stderr)]
    logging.captureWarnings(True)
    show_warning = warnings.showwarning
    try:
        logging.root.setLevel(logging.ERROR)
        with log_to_stderr():
            logging.getLogger("posenet").error("once")
            logging.getLogger("posenet").info("not shown at the level of the program")
        assert warnings.showwarning is show_warning
    finally:
        logging.captureWarnings(False)
        logging.root.handlers[:], logging.root.level = handlers, level
    assert capsys.readouterr().err == "once\n"


def test_rank_0_shows_everything_and_other_ranks_what_concerns_them_alone(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["WARNING: the loss is bad", "WARNING: a worker has died", "ERROR: out of memory"]
    assert messages(capsys) == ["step 3", *common, "posenet train: error: no data"]
    assert messages(capsys, quiet=True) == [*common, "posenet train: error: no data"]
    assert messages(capsys, rank=2) == [
        "rank 2: WARNING: a worker has died",
        "rank 2: ERROR: out of memory",
        "posenet train: error: no data",
    ]


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    def run_and_open_file() -> None:
        for descriptor in range(3):
            os.close(descriptor)
        sys.stdout = sys.stderr = None  # as Python starts
        status = run_tool("annotations", ["lint", "missing.json"])
        sys.stderr.write("text of a library\n")
        inherited = all(os.get_inheritable(descriptor) for descriptor in range(3))
        is_another = os.open(tmp_path / "a.txt", os.O_CREAT) > 2
        os._exit(status if is_another and inherited and sys.stdout is None else 1)

    assert wait_for_exit(fork_process(run_and_open_file, tmp_path / "log.txt")) == 2
