"""Rules for Windows and macOS: no calls that only POSIX has, stated encodings, workers that can be spawned."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

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


def test_names_that_only_posix_has_are_looked_up_before_use() -> None:
    violations = []
    for file, path in FILES.items():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(syntax_tree(path)):
            if not isinstance(node, ast.Attribute):
                continue
            module = ast.unparse(node.value)
            if node.attr in POSIX_NAMES.get(module, ()):
                looked_up = "alarm" if node.attr == "SIGALRM" else node.attr  # a system has both or neither
                checks = (f'hasattr({module}, "{node.attr}")', f'hasattr({module}, "{looked_up}")', "AttributeError")
                if not any(check in text for check in checks):
                    violations.append(f"{file}:{node.lineno}: {module}.{node.attr}")
    assert violations == []


def test_modules_that_only_posix_has_are_optional() -> None:
    violations = []
    for file, path in FILES.items():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                if names & POSIX_MODULES and 'sys.platform == "win32"' not in path.read_text(encoding="utf-8"):
                    violations.append(f"{file}:{node.lineno}")
    assert violations == []


def test_text_files_are_opened_with_an_encoding() -> None:
    violations = []
    for file, path in FILES.items():
        for call in calls(path):
            name = ast.unparse(call.func)
            mode = ast.unparse(call.args[1]) if len(call.args) > 1 else "'r'"
            opens_text = name == "open" and "b" not in mode and "os.devnull" not in ast.unparse(call)
            has_encoding = "encoding" in {keyword.arg for keyword in call.keywords}
            if (opens_text or name.endswith((".read_text", ".write_text"))) and not has_encoding:
                violations.append(f"{file}:{call.lineno}")
    assert violations == []


def test_opencv_opens_no_image_files() -> None:
    """On Windows, OpenCV cannot open files whose names are not ASCII."""
    violations = []
    for file, path in FILES.items():
        for call in calls(path):
            if ast.unparse(call.func) in ("cv2.imread", "cv2.imwrite"):
                violations.append(f"{file}:{call.lineno}")
    assert violations == []


def test_no_string_is_a_path_of_one_system() -> None:
    violations = []
    for file in FILES.keys() - set(READ_SYSTEM_FILES):
        for node in ast.walk(syntax_tree(FILES[file])):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(SYSTEM_FOLDERS):
                violations.append(f"{file}:{node.lineno}")
    assert violations == []


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
