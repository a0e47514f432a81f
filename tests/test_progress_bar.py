"""Progress on a terminal, in a pipe, and hidden; messages beside it."""

import io
import os
import re
import subprocess
import sys
import types

import pytest

from posenet import progress_bar as progress_module
from posenet.progress_bar import hide_progress, progress_bar
from tests.helpers.source_files import ROOT

SCRIPT = """
import logging, time, warnings
from posenet import progress_bar as progress_module
from posenet.cli.main import log_to_stderr, report_error
from posenet.progress_bar import progress_bar

progress_module.LINE_SECONDS = 0.2
with log_to_stderr():
    items = progress_bar(range(100), "work", unit="image")
    for item in items:
        time.sleep(0.01)
        if item == 50:
            logging.info("a message")
            warnings.warn("odd")
            logging.warning("a problem")
    bar = progress_bar(title="unfinished", total=9)
    bar.update()
    report_error("tool", "error: it broke")
"""


def test_in_a_pipe_there_is_a_text_now_and_then_and_no_drawing() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT]
    errors = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr
    assert "\x1b" not in errors
    lines = [line.strip() for line in re.split("[\r\n]", errors)]
    shown = [line for line in lines if "work: " in line]
    assert 1 <= len(shown) < 50
    assert all(re.fullmatch(r"work: \d+/100 \[\d\d:\d\d<\d\d:\d\d, +\d+\.\d+image/s\]", line) for line in shown)
    assert lines.count("a message") == lines.count("WARNING: a problem") == 1 and "tool: error: it broke" in lines


def test_hidden_progress_returns_when_the_context_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with hide_progress():
        with hide_progress():
            assert progress_bar(range(3)).disable
        assert progress_bar(range(3)).disable, "until the outer context ends"
    bar = progress_bar(range(3))
    assert not bar.disable
    bar.close()
    assert progress_bar(range(3), disable=True).disable
    assert list(progress_bar("abc", disable=True)) == list("abc")


@pytest.mark.parametrize("stream", [None, types.SimpleNamespace(write=lambda text: None), object()])
def test_there_need_not_be_a_standard_error(stream: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service has none, nor has a windowed program; others put an object there that has only ``write``."""
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress_module, "LINE_SECONDS", 0.0)
    assert list(progress_bar(range(3), "work")) == [0, 1, 2]
    progress_module.close_bars()
