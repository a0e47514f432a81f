"""The word in the folder of a run that tells scripts whether it has finished, was stopped or has failed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from posenet.checkpoints.run_status import STATUS_FILE, RunStatusFile


def status(folder: Path) -> str:
    return (folder / STATUS_FILE).read_text()


def test_a_run_is_running_and_then_finished(tmp_path: Path) -> None:
    with RunStatusFile(tmp_path):
        assert status(tmp_path) == "running\n"
    assert status(tmp_path) == "finished\n"


def test_a_run_that_a_signal_stops_is_stopped(tmp_path: Path) -> None:
    with RunStatusFile(tmp_path) as file:
        file.set_stopped()
        assert status(tmp_path) == "running\n"
    assert status(tmp_path) == "stopped\n"


@pytest.mark.parametrize(
    "error, word", [(RuntimeError, "failed"), (SystemExit, "failed"), (KeyboardInterrupt, "stopped")]
)
def test_a_run_that_ends_with_an_error_has_failed(tmp_path: Path, error: type[BaseException], word: str) -> None:
    with pytest.raises(error), RunStatusFile(tmp_path) as file:
        if error is not KeyboardInterrupt:
            file.set_stopped()
        raise error
    assert status(tmp_path) == f"{word}\n"


def test_a_status_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posenet.checkpoints.run_status.write_atomically", fail)
    with caplog.at_level(logging.WARNING), RunStatusFile(tmp_path):
        pass
    assert "cannot write" in caplog.text and "No space left on device" in caplog.text and "finished" in caplog.text
