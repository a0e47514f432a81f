"""Progress on a terminal, in a pipe, and hidden; messages beside it."""

from __future__ import annotations

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


def run_script(terminal: bool = False) -> str:
    """What the script writes to standard error, which is a pipe or a terminal."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    command = [sys.executable, "-c", SCRIPT]
    if not terminal:
        finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return finished.stderr
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(command, env=environment, stderr=follower)
    os.close(follower)
    chunks = []
    try:
        while chunk := os.read(leader, 4096):
            chunks.append(chunk)
    except OSError:  # Linux reports the end of a terminal as an error
        pass
    os.close(leader)
    assert process.wait() == 0
    return b"".join(chunks).decode()


def test_in_a_pipe_there_is_a_text_now_and_then_and_no_drawing() -> None:
    errors = run_script()
    assert "\x1b" not in errors
    lines = [line.strip() for line in re.split("[\r\n]", errors)]
    shown = [line for line in lines if "work: " in line]
    assert 1 <= len(shown) < 50
    assert all(re.fullmatch(r"work: +\d+% \d+/100 \[\d\d:\d\d<\d\d:\d\d, +\d+\.\d+image/s\]", line) for line in shown)
    assert lines.count("a message") == lines.count("WARNING: a problem") == 1 and "tool: error: it broke" in lines


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_on_a_terminal_messages_never_share_a_line_with_the_bar() -> None:
    screen = run_script(terminal=True)
    assert "\rwork: " in screen and "100%" in screen
    # What a terminal shows in the end: a carriage return starts the line again, ESC [ K clears it.
    lines = [re.split(r"\r|\x1b\[K", line)[-1].strip() for line in screen.replace("\r\n", "\n").split("\n")]
    for message in ("a message", "WARNING: a problem", "tool: error: it broke"):
        assert message in lines
    assert any(line.endswith("UserWarning: odd") and "work" not in line for line in lines)


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
