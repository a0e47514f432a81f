"""The source files of the package, as syntax trees, for tests of house rules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "posenet"

FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
"""All files of the package by dotted name, such as ``data.store_list`` and ``data.__init__``."""
MODULES = {name: path for name, path in FILES.items() if path.name != "__init__.py"}
INITS = {name: path for name, path in FILES.items() if path.name == "__init__.py"}


@cache
def syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, also inside functions; ``from a import b`` counts as a.b."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from names_of(node)


def names_of(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """The dotted names that one statement imports."""
    source = f"{'.' * node.level}{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
    yield from (f"{source}{alias.name}" for alias in node.names)


def imports_at_start(path: Path) -> Iterator[str]:
    """Like ``imports``, but only what is imported when the file itself is: outside functions and type checks."""
    for node in syntax_tree(path).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from names_of(node)


def package_imports(path: Path, found: Callable[[Path], Iterator[str]] = imports) -> Iterator[str]:
    """The files of the package that a file imports, by the names in ``FILES``."""
    for name in found(path):
        if name.startswith("posenet."):
            name = name.removeprefix("posenet.")
            parent = name.rpartition(".")[0]
            # The last part is a module, a name in a module, or a name that an __init__ exports.
            yield next(candidate for candidate in (name, parent, f"{parent}.__init__") if candidate in FILES)


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Call))
