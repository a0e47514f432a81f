"""The source files of the package, as syntax trees, for tests of house rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "posenet"

FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
"""All files of the package by dotted name, such as ``data.store.reader`` and ``data.__init__``."""
MODULES = {name: path for name, path in FILES.items() if path.name != "__init__.py"}
INITS = {name: path for name, path in FILES.items() if path.name == "__init__.py"}


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, also inside functions; ``from a import b`` counts as a.b."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def package_imports(path: Path) -> Iterator[str]:
    """The files of the package that a file imports, by the names in ``FILES``."""
    for name in imports(path):
        if name.startswith("posenet."):
            name = name.removeprefix("posenet.")
            parent = name.rpartition(".")[0]
            # The last part is a module, a name in a module, or a name that an __init__ exports.
            yield next(candidate for candidate in (name, parent, f"{parent}.__init__") if candidate in FILES)


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Call))
