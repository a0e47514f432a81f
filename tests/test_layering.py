"""Modules of ``posenet`` import only from their own or lower subpackages, and never in circles."""

from __future__ import annotations

from graphlib import TopologicalSorter

from tests.helpers.source_files import FILES, INITS, MODULES, imports_at_start, package_imports

SUBPACKAGES = (
    "errors messages files extensions progress_bar threads skeleton settings devices downloading images person "
    "annotations data synthetic model checkpoints visualization inference diagnosis training cli __main__"
).split()
"""The subpackages and the top-level modules, lowest first. A module may import from its own and from earlier ones."""
HEIGHTS = {name: height for height, name in enumerate(SUBPACKAGES)}


def subpackage_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_list_names_every_subpackage() -> None:
    assert {subpackage_of(module) for module in MODULES} == set(SUBPACKAGES)


def test_a_module_imports_from_its_own_subpackage_and_lower_ones() -> None:
    assert [
        f"{module} may not import {imported}"
        for module, path in MODULES.items()
        for imported in package_imports(path)
        if HEIGHTS[subpackage_of(imported)] > HEIGHTS[subpackage_of(module)]
    ] == []


def test_no_imports_run_in_circles() -> None:
    graph = {name: set(package_imports(path)) for name, path in FILES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_folder_of_the_package_has_an_init() -> None:
    assert {path.parent for path in MODULES.values()} == {path.parent for path in INITS.values()}


def test_no_tool_imports_pytorch_before_it_has_read_its_flags() -> None:
    waiting = [name for name in FILES if name.startswith("cli.")]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += package_imports(FILES[name], imports_at_start)
    assert {"cli.train", "cli.export_onnx", "training.run_settings"} <= reached
    assert [
        f"{name} imports {imported}"
        for name in sorted(reached)
        for imported in imports_at_start(FILES[name])
        if imported.partition(".")[0] in ("torch", "scipy", "matplotlib", "onnx", "onnxruntime", "openvino", "av")
    ] == []
