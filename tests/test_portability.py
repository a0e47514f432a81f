"""What Windows and macOS need: spawned workers, guarded signals, stated encodings, no POSIX-only calls."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

import pytest

from posenet.data.dataset import PoseDataset
from posenet.data.loader import close_loader, make_loader
from posenet.data.store.reader import Store
from posenet.settings import AugmentConfig

FILES = sorted(Path(__file__).parents[1].joinpath("posenet").rglob("*.py"))
POSIX = {
    "fork",
    "forkpty",
    "getuid",
    "geteuid",
    "mkfifo",
    "nice",
    "sched_getaffinity",
    "sysconf",
    "wait",
    "killpg",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGHUP",
    "SIGKILL",
    "SIGQUIT",
    "alarm",
    "pause",
    "setitimer",
}
POSIX_MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "termios"}


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_only_posix_has_is_asked_for_first(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr in POSIX and ast.unparse(node.value) in ("os", "signal"):
            guard = f'hasattr({ast.unparse(node.value)}, "{node.attr}")'
            # alarm and its signal come together.
            guards = {guard, guard.replace("SIGALRM", "alarm")}
            assert any(g in text for g in guards) or "AttributeError" in text, f"line {node.lineno}: {node.attr}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            assert not names & POSIX_MODULES or 'sys.platform == "win32"' in text, f"line {node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_text_files_state_their_encoding_and_opencv_opens_no_files(path: Path) -> None:
    for call in calls(path):
        name, keywords = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
        mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "'r'"
        if name == "open" and "b" not in mode and "os.devnull" not in ast.unparse(call):
            assert "encoding" in keywords, f"line {call.lineno}"
        if name.endswith((".read_text", ".write_text")):
            assert "encoding" in keywords, f"line {call.lineno}"
        # On Windows these cannot open a name that is not ASCII.
        assert name not in ("cv2.imread", "cv2.imwrite"), f"line {call.lineno}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_path_of_one_system_is_written_down(path: Path) -> None:
    if path.stem in ("machine", "shared_buffers"):
        return  # they try /proc/cpuinfo and /dev/shm, and do without
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not node.value.startswith(("/tmp", "/dev/", "/proc", "/usr", "/home", "C:\\")), f"line {node.lineno}"


def test_loader_workers_may_be_spawned(stores: dict[str, Path]) -> None:
    with Store(stores["train"]) as store:
        dataset = PoseDataset(store, (64, 64), augment=AugmentConfig(), seed=3)
        batches = [[(0, 0), (0, 1)], [(1, 0), (1, 2)]]
        here = list(make_loader(dataset, batches, 0))
        loader = make_loader(dataset, batches, 1)
        loader.multiprocessing_context = "spawn"
        there = list(loader)
        close_loader(loader)
    for one, other in zip(here, there, strict=True):
        assert all((a == b).all() for a, b in zip(one[:5], other[:5], strict=True)) and one.faults == other.faults


def test_the_stop_signals_exist_here() -> None:
    from posenet.devices.signals import STOP_SIGNALS

    assert {signal.SIGINT, signal.SIGTERM} <= set(STOP_SIGNALS)
    assert (len(STOP_SIGNALS) == 3) == hasattr(signal, "SIGUSR1") == (os.name != "nt")
