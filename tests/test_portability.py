"""Rules for other machines: names that only POSIX has, stated encodings, and declared packages."""

from __future__ import annotations

import ast
import configparser
import contextlib
import os
import re
import signal
import sys
from importlib import metadata

from posenet.devices.signals import STOP_SIGNALS
from tests.helpers.source_files import FILES, ROOT, calls, syntax_tree

POSIX_NAMES = {
    "os": {"fork", "forkpty", "geteuid", "getuid", "killpg", "mkfifo", "nice", "sched_getaffinity", "sysconf", "wait"},
    "signal": {"SIGALRM", "SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGUSR2", "alarm", "pause", "setitimer"},
}
"""Names of ``os`` and ``signal`` that Windows lacks."""

MODULES_OF_EXTRAS = ("inference.media.video",)
"""Modules that need the extra ``video``; others import them when they need them."""


def test_names_that_only_posix_has_are_looked_up_before_use() -> None:
    violations = []
    for file, path in FILES.items():
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(syntax_tree(path)):
            if not isinstance(node, ast.Attribute):
                continue
            module = ast.unparse(node.value)
            if node.attr in POSIX_NAMES.get(module, ()):
                checks = (f'hasattr({module}, "{node.attr}")', "AttributeError")
                if not any(check in text for check in checks):
                    violations.append(f"{file}:{node.lineno}: {module}.{node.attr}")
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


def test_every_package_that_is_always_imported_is_installed_with_this_one() -> None:
    """An environment for development has packages that a plain installation lacks."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    installed = {requirement_name(line) for line in settings["options"]["install_requires"].split("\n") if line}
    pending = list(installed)
    while pending:
        with contextlib.suppress(metadata.PackageNotFoundError):
            required = [line for line in metadata.requires(pending.pop()) or () if "extra ==" not in line]
            new = {requirement_name(line) for line in required} - installed
            installed |= new
            pending += new
    distributions = metadata.packages_distributions()
    violations = []
    for file in FILES.keys() - set(MODULES_OF_EXTRAS):
        for node in syntax_tree(FILES[file]).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"posenet"}:
                if not installed & {requirement_name(distribution) for distribution in distributions[name]}:
                    violations.append(f"{file}:{node.lineno}: {name}")
    assert violations == []


def requirement_name(requirement: str) -> str:
    """The name in ``opencv-python>=4.12``; OpenCV's two distributions count as one."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return name[0].lower().replace("_", "-").removesuffix("-headless")


def test_stop_signals_are_those_that_this_system_has() -> None:
    assert {signal.SIGINT, signal.SIGTERM} <= set(STOP_SIGNALS)
    assert (len(STOP_SIGNALS) == 3) == hasattr(signal, "SIGUSR1") == (os.name != "nt")
