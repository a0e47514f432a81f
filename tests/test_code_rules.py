"""House rules that a parser can check: what code of the package must not do."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.helpers.source_files import INITS, MODULES, ROOT, calls, imports, syntax_tree

LIBRARY = [name for name in MODULES if name.startswith(("model.", "data.", "inference.", "training.loss"))]
"""Modules that also work without an experiment file and without other processes."""


def has_constant(call: ast.Call, keyword: str, value: object) -> bool:
    """Whether a call states ``keyword=value``."""
    for argument in call.keywords:
        if argument.arg == keyword:
            return isinstance(argument.value, ast.Constant) and argument.value.value is value
    return False


@pytest.mark.parametrize("module", MODULES)
def test_checkpoints_are_read_safely_and_strictly(module: str) -> None:
    for call in calls(MODULES[module]):
        assert not has_constant(call, "strict", False), f"line {call.lineno}: strict=False hides missing weights"
        if ast.unparse(call.func) == "torch.load":
            assert has_constant(call, "weights_only", True), f"line {call.lineno}: torch.load runs code from the file"


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("cli.")])
def test_only_the_command_line_prints(module: str) -> None:
    assert [call.lineno for call in calls(MODULES[module]) if ast.unparse(call.func) == "print"] == []


@pytest.mark.parametrize("module", LIBRARY)
def test_the_library_uses_neither_process_groups_nor_experiment_files(module: str) -> None:
    assert not [name for name in imports(MODULES[module]) if name.startswith("torch.distributed")]
    for node in ast.walk(syntax_tree(MODULES[module])):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
        assert name not in ("distributed", "load_config"), f"line {node.lineno}: {name}"


@pytest.mark.parametrize("package", INITS)
def test_an_init_has_a_docstring_and_only_re_exports(package: str) -> None:
    docstring, *statements = syntax_tree(INITS[package]).body
    assert isinstance(docstring, ast.Expr)
    for statement in statements:
        assert is_re_export(statement), f"line {statement.lineno}"


def is_re_export(statement: ast.stmt) -> bool:
    """Whether a statement imports names, assigns a private or dunder name, or makes imports lazy."""
    if isinstance(statement, ast.If):  # if TYPE_CHECKING
        return all(isinstance(inner, ast.ImportFrom) for inner in statement.body) and not statement.orelse
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("_") for target in statement.targets)
    if isinstance(statement, ast.FunctionDef):
        return statement.name in ("__getattr__", "__dir__")
    return isinstance(statement, (ast.Import, ast.ImportFrom))


@pytest.mark.parametrize("script", sorted((ROOT / "tools").glob("*.py")), ids=lambda path: path.stem)
def test_a_script_only_runs_its_tool(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) < 30
    assert set(imports(script)) == {"sys", "posenet.cli.main.run_tool"}
