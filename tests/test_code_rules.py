"""House rules that a parser can check: what code of the package must not do. Each test lists all violations."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.source_files import FILES, INITS, MODULES, ROOT, calls, imports, syntax_tree

OWN_READS = {
    "checkpoints.file: open(path, 'rb')",  # after a check
    "cli.predict: open(weights, 'rb')",  # after a check
    "data.store_writer: open(unfinished, 'r+b')",  # of this program
    "devices.launch: status_file.read_text(encoding='utf-8')",
    "files: open(path, 'rb')",
    "inference.outputs.lines_file: open(self.path, 'rb')",
    "training.compare_ranks: path.read_bytes()",
}
"""Where files are read without ``open_input``: files that this package itself has written, and checked ones."""

DOCUMENTED_NAMES = {"_asdict", "_dynamo", "_exit", "_fields", "_make", "_replace"}
"""Public names of named tuples, ``os`` and PyTorch that begin with an underscore. PyTorch's documentation of
``torch.compile`` names functions and options of ``torch._dynamo`` for which there is no other module."""

NO_SCRIPTS = {"benchmark"}
"""Files of tools/ that are more than a call of a tool: measuring is not part of the package."""


def has_constant(call: ast.Call, keyword: str, value: object) -> bool:
    """Whether a call states ``keyword=value``."""
    for argument in call.keywords:
        if argument.arg == keyword:
            return isinstance(argument.value, ast.Constant) and argument.value.value is value
    return False


def test_checkpoints_are_read_safely_and_strictly() -> None:
    violations = []
    for module, path in MODULES.items():
        for call in calls(path):
            if has_constant(call, "strict", False):
                violations.append(f"{module}:{call.lineno}: strict=False hides missing weights")
            if ast.unparse(call.func) == "torch.load" and not has_constant(call, "weights_only", True):
                violations.append(f"{module}:{call.lineno}: torch.load runs code from the file")
    assert violations == []


def test_errors_name_arguments_of_python_outside_of_commands() -> None:
    """The command line replaces them by its flags."""
    violations = []
    for module, path in MODULES.items():
        for node in ast.walk(syntax_tree(path)):
            if module.startswith(("cli.", "devices.")) or not isinstance(node, ast.Raise):
                continue
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            before, flag, _ = "".join(text for text in texts if isinstance(text, str)).partition(" --")
            if flag and not re.search("(posenet|docker) ", before):
                violations.append(f"{module}:{node.lineno}: {before} --")
    assert violations == []


def test_only_the_command_line_prints_and_only_what_is_safe_for_a_terminal() -> None:
    violations = []
    for module, path in MODULES.items():
        for call in calls(path):
            name = ast.unparse(call.func)
            if name in ("print", "sys.stdout.write") or (name == "print_message" and not module.startswith("cli.")):
                violations.append(f"{module}:{call.lineno}: tools print with print_message of cli/logging_setup.py")
    assert violations == []


def test_inputs_are_opened_where_a_fifo_or_a_device_is_refused() -> None:
    """Opening a FIFO may wait for ever, and a device may never end."""
    found = {
        f"{module}: {ast.unparse(call)}"
        for module, path in MODULES.items()
        for call in calls(path)
        if re.search(r"(^|\.)(fromfile|imread|read_bytes|read_text)$", ast.unparse(call.func))
        or (ast.unparse(call.func) == "open" and not re.search(r", '[wax]", ast.unparse(call)))
    }
    assert found - OWN_READS == set()


def test_an_init_has_a_docstring_and_only_re_exports() -> None:
    violations = []
    for package, path in INITS.items():
        docstring, *statements = syntax_tree(path).body
        assert isinstance(docstring, ast.Expr), package
        violations += [f"{package}:{statement.lineno}" for statement in statements if not is_re_export(statement)]
    assert violations == []


def is_re_export(statement: ast.stmt) -> bool:
    """Whether a statement imports names, assigns a private or dunder name, or makes imports lazy."""
    if isinstance(statement, ast.If):  # if TYPE_CHECKING
        return all(isinstance(inner, ast.ImportFrom) for inner in statement.body) and not statement.orelse
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) and target.id.startswith("_") for target in statement.targets)
    if isinstance(statement, ast.FunctionDef):
        return statement.name in ("__getattr__", "__dir__")
    return isinstance(statement, (ast.Import, ast.ImportFrom))


def test_a_script_only_runs_its_tool() -> None:
    scripts = {path.stem: path for path in (ROOT / "tools").glob("*.py")}
    assert scripts.keys() >= NO_SCRIPTS
    for name in scripts.keys() - NO_SCRIPTS:
        assert len(scripts[name].read_text(encoding="utf-8").splitlines()) < 30, name
        assert set(imports(scripts[name])) == {"sys", "posenet.cli.main.run_tool"}, name


# Private names of libraries


def is_private(name: str) -> bool:
    return bool(re.fullmatch(r"_[^_].*", name)) and name not in DOCUMENTED_NAMES


def own_private_names() -> set[str]:
    """Private names that the package itself defines: functions, classes, and attributes of ``self`` and ``cls``."""
    names = set()
    for path in FILES.values():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own_object(node.value):
                names.add(node.attr)
    return names


def is_own_object(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_names_of_libraries(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """``LINE: NAME`` for each private name of a library that a file uses, also by import or by ``getattr``."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and not is_own_object(node.value):
            names = [node.attr]
        elif isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("posenet"):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            attribute = node.args[1]
            names = [attribute.value] if isinstance(attribute, ast.Constant) else []
        yield from (f"{node.lineno}: {name}" for name in names if is_private(name) and name not in own)


def test_no_private_names_of_libraries_are_used() -> None:
    own = own_private_names()
    found = {module: list(private_names_of_libraries(syntax_tree(path), own)) for module, path in MODULES.items()}
    assert {module: names for module, names in found.items() if names} == {}


def test_messages_name_extras_of_our_distribution() -> None:
    """Another package on the index is called posenet, like ours when it is imported."""
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    name = metadata["metadata"]["name"]
    installed = {
        (module, *match)
        for module, path in MODULES.items()
        for match in re.findall(r"(\w+)\[(\w+)\]'", path.read_text(encoding="utf-8"))
        if match[0] in (name, "posenet")
    }
    assert len(installed) >= 5
    assert {
        extra for extra in installed if extra[1] != name or extra[2] not in metadata["options.extras_require"]
    } == set()


def test_the_rules_see_the_whole_package() -> None:
    assert len(MODULES) > 50 and all(isinstance(path, Path) and path.is_file() for path in FILES.values())
