"""What the metadata of the distribution says, where a development environment would hide that it is wrong."""

import ast
import configparser
import contextlib
import re
import sys
from importlib import metadata

from tests.helpers.source_files import PACKAGE, ROOT

MODULES_OF_EXTRAS = ("inference/media/video.py",)
"""Modules that need the extra ``video``; others import them when they need them."""


def read_setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirement_name(requirement: str) -> str:
    """The name in ``opencv-python>=4.12``; OpenCV's two distributions count as one."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return name[0].lower().replace("_", "-").removesuffix("-headless")


def test_every_package_that_is_always_imported_is_installed_with_this_one() -> None:
    installed = {requirement_name(line) for line in read_setup()["options"]["install_requires"].split("\n") if line}
    pending = list(installed)
    while pending:
        with contextlib.suppress(metadata.PackageNotFoundError):
            required = [line for line in metadata.requires(pending.pop()) or () if "extra ==" not in line]
            new = {requirement_name(line) for line in required} - installed
            installed |= new
            pending += new
    distributions = metadata.packages_distributions()
    violations = []
    for path in set(PACKAGE.rglob("*.py")) - {PACKAGE / name for name in MODULES_OF_EXTRAS}:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"posenet"}:
                if not installed & {requirement_name(distribution) for distribution in distributions[name]}:
                    violations.append(f"{path}:{node.lineno}: {name}")
    assert violations == []


def test_messages_name_extras_of_this_distribution() -> None:
    """Another package on the index is called posenet, as this one is when it is imported."""
    setup = read_setup()
    named = {
        match
        for path in PACKAGE.rglob("*.py")
        for match in re.findall(r"(simplepose|posenet)\[(\w+)\]'", path.read_text(encoding="utf-8"))
    }
    assert len(named) >= 5
    assert named <= {(setup["metadata"]["name"], extra) for extra in setup["options.extras_require"]}
