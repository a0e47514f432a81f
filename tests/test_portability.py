"""Rules for Windows and macOS: no calls that only POSIX has, stated encodings, workers that can be spawned."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

import pytest

from posenet.data.dataset import PoseDataset
from posenet.data.loader import make_loader
from posenet.data.store import Store
from posenet.devices.signals import STOP_SIGNALS
from posenet.settings import AugmentConfig
from tests.helpers.source_files import FILES, calls, syntax_tree

POSIX_NAMES = {
    "os": {
        "fork",
        "forkpty",
        "geteuid",
        "getuid",
        "killpg",
        "mkfifo",
        "nice",
        "sched_getaffinity",
        "sysconf",
        "wait",
    },
    "signal": {
        "SIGALRM",
        "SIGHUP",
        "SIGKILL",
        "SIGQUIT",
        "SIGUSR1",
        "SIGUSR2",
        "alarm",
        "pause",
        "setitimer",
    },
}
"""Names of ``os`` and ``signal`` that Windows lacks."""

POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}

SYSTEM_FOLDERS = ("/tmp", "/dev/", "/proc", "/usr", "/home", "C:\\")
READ_SYSTEM_FILES = ("devices.cpu",)
"""Modules that read such files where they exist, and work without them."""


@pytest.mark.parametrize("file", FILES)
def test_names_that_only_posix_has_are_looked_up_before_use(file: str) -> None:
    text = FILES[file].read_text(encoding="utf-8")
    for node in ast.walk(syntax_tree(FILES[file])):
        if not isinstance(node, ast.Attribute):
            continue
        module = ast.unparse(node.value)
        if node.attr in POSIX_NAMES.get(module, ()):
            looked_up = "alarm" if node.attr == "SIGALRM" else node.attr  # a system has both or neither
            checks = (f'hasattr({module}, "{node.attr}")', f'hasattr({module}, "{looked_up}")', "AttributeError")
            assert any(check in text for check in checks), f"line {node.lineno}: {module}.{node.attr}"


@pytest.mark.parametrize("file", FILES)
def test_modules_that_only_posix_has_are_optional(file: str) -> None:
    text = FILES[file].read_text(encoding="utf-8")
    for node in ast.walk(syntax_tree(FILES[file])):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not names & POSIX_MODULES or 'sys.platform == "win32"' in text, f"line {node.lineno}"


@pytest.mark.parametrize("file", FILES)
def test_text_files_are_opened_with_an_encoding(file: str) -> None:
    for call in calls(FILES[file]):
        name = ast.unparse(call.func)
        mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "'r'"
        opens_text = name == "open" and "b" not in mode and "os.devnull" not in ast.unparse(call)
        if opens_text or name.endswith((".read_text", ".write_text")):
            assert "encoding" in {keyword.arg for keyword in call.keywords}, f"line {call.lineno}"


@pytest.mark.parametrize("file", FILES)
def test_opencv_opens_no_image_files(file: str) -> None:
    """On Windows, OpenCV cannot open files whose names are not ASCII."""
    for call in calls(FILES[file]):
        assert ast.unparse(call.func) not in ("cv2.imread", "cv2.imwrite"), f"line {call.lineno}"


@pytest.mark.parametrize("file", [file for file in FILES if file not in READ_SYSTEM_FILES])
def test_no_string_is_a_path_of_one_system(file: str) -> None:
    for node in ast.walk(syntax_tree(FILES[file])):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not node.value.startswith(SYSTEM_FOLDERS), f"line {node.lineno}"


def test_spawned_workers_make_the_same_batches(stores: dict[str, Path]) -> None:
    with Store(stores["train"]) as store:
        dataset = PoseDataset(store, (64, 64), augment=AugmentConfig(), seed=3)
        keys = [[(0, 0), (0, 1)], [(1, 0), (1, 2)]]
        batches = list(make_loader(dataset, keys, 0))
        loader = make_loader(dataset, keys, 1)
        loader.multiprocessing_context = "spawn"
        spawned_batches = list(loader)
    for batch, spawned in zip(batches, spawned_batches, strict=True):
        assert all((a == b).all() for a, b in zip(batch[:5], spawned[:5], strict=True))
        assert batch.faults == spawned.faults


def test_stop_signals_are_those_that_this_system_has() -> None:
    assert {signal.SIGINT, signal.SIGTERM} <= set(STOP_SIGNALS)
    assert (len(STOP_SIGNALS) == 3) == hasattr(signal, "SIGUSR1") == (os.name != "nt")
