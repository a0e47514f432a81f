"""The house rules that a parser can check: who imports whom, and what no file may do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "posenet"

ROOMS = """
    errors messages files
    skeleton settings devices images annotations data synthetic model checkpoints inference visualization training
    benchmark cli
""".split()
"""The rooms of ``posenet``, lowest first: a module imports only from its own room and from those before it."""

FILES = {".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = {name: path for name, path in FILES.items() if path.name != "__init__.py"}
INITS = {name: path for name, path in FILES.items() if path.name == "__init__.py"}
DEVICE_INDEPENDENT = ("model.", "data.", "inference.", "training.loss")
"""Parts that know neither other processes nor experiment files."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def room(module: str) -> str:
    return module.partition(".")[0]


def imports(path: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere in it; ``from a import b`` counts as a.b."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names)


def own_imports(path: Path) -> Iterator[str]:
    """The modules of ``posenet`` that a file imports; a package counts as its ``__init__``."""
    for name in imports(path):
        if name.startswith("posenet."):
            inside = name.removeprefix("posenet.")
            candidates = [inside, inside.rpartition(".")[0], f"{inside.rpartition('.')[0]}.__init__"]
            yield next(candidate for candidate in candidates if candidate in FILES)


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))


def is_constant(call: ast.Call, keyword: str, value: object) -> bool:
    return any(k.arg == keyword and isinstance(k.value, ast.Constant) and k.value.value is value for k in call.keywords)


def test_every_room_is_in_the_table() -> None:
    assert {room(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_imports_come_from_lower_rooms(module: str) -> None:
    for imported in own_imports(MODULES[module]):
        assert ROOMS.index(room(imported)) <= ROOMS.index(room(module)), f"{module} may not import {imported}"


def test_imports_do_not_run_in_circles() -> None:
    TopologicalSorter({module: set(own_imports(path)) for module, path in FILES.items()}).prepare()


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith(DEVICE_INDEPENDENT)])
def test_the_library_knows_neither_other_processes_nor_experiment_files(module: str) -> None:
    path = MODULES[module]
    assert not [name for name in imports(path) if name.startswith("torch.distributed")]
    for node in ast.walk(tree(path)):
        assert not (isinstance(node, ast.Attribute) and node.attr == "distributed")
        assert not (isinstance(node, ast.Name) and node.id == "load_config")
        assert not (isinstance(node, ast.Attribute) and node.attr == "load_config")


@pytest.mark.parametrize("package", INITS)
def test_an_init_only_re_exports(package: str) -> None:
    def re_exports(node: ast.stmt) -> bool:
        if isinstance(node, ast.If):
            return all(isinstance(inner, ast.ImportFrom) for inner in node.body) and not node.orelse
        if isinstance(node, ast.Assign):
            return all(isinstance(target, ast.Name) and target.id.startswith("_") for target in node.targets)
        if isinstance(node, ast.FunctionDef):
            return node.name in ("__getattr__", "__dir__")
        return isinstance(node, (ast.Import, ast.ImportFrom))

    docstring, *rest = tree(INITS[package]).body
    assert isinstance(docstring, ast.Expr) and all(map(re_exports, rest))


def test_every_folder_of_the_package_is_a_package() -> None:
    assert {path.parent for path in MODULES.values()} == {path.parent for path in INITS.values()}


@pytest.mark.parametrize("module", MODULES)
def test_checkpoints_are_read_safely_and_strictly(module: str) -> None:
    for call in calls(MODULES[module]):
        assert not is_constant(call, "strict", False), f"line {call.lineno}: strict=False hides what was not loaded"
        if ast.unparse(call.func) == "torch.load":
            assert is_constant(call, "weights_only", True), f"line {call.lineno}: torch.load runs code from the file"


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("cli.")])
def test_only_the_command_line_prints(module: str) -> None:
    assert [call.lineno for call in calls(MODULES[module]) if ast.unparse(call.func) == "print"] == []


@pytest.mark.parametrize("script", sorted((ROOT / "tools").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_is_thin(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 30
    assert set(imports(script)) == {"sys", "posenet.cli.main.run_tool"}
