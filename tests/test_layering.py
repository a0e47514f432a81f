"""Modules of ``posenet`` import only downward: from lower rooms or their own, and never in circles."""

from __future__ import annotations

from graphlib import TopologicalSorter

import pytest

from tests.helpers.source_files import FILES, INITS, MODULES, package_imports

# The rooms (folders or single modules), lowest first. A module may import from its own room and from rooms that
# come earlier in this list.
ROOMS = [
    "errors",  # errors that a user can act on
    "messages",  # texts of messages
    "files",  # writing files atomically
    "skeleton",  # keypoints and body parts
    "settings",  # the settings of an experiment
    "devices",  # devices, precision, processes, signals
    "images",  # reading and writing image files
    "annotations",  # COCO annotation files
    "data",  # the store, augmentation, batches, target maps
    "synthetic",  # synthetic people as a COCO data set
    "model",  # the network
    "checkpoints",  # checkpoint files and runs' folders
    "inference",  # from images to people
    "visualization",  # drawings and charts
    "training",  # the trainer and its parts
    "benchmark",  # one module for each measured part
    "cli",  # one module for each tool
]
HEIGHTS = {room: height for height, room in enumerate(ROOMS)}


def room_of(module: str) -> str:
    return module.partition(".")[0]


def test_the_table_lists_every_room() -> None:
    assert {room_of(module) for module in MODULES} == set(ROOMS)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_from_its_own_room_and_lower_ones(module: str) -> None:
    for imported in package_imports(MODULES[module]):
        assert HEIGHTS[room_of(imported)] <= HEIGHTS[room_of(module)], f"{module} may not import {imported}"


def test_no_imports_run_in_circles() -> None:
    graph = {name: set(package_imports(path)) for name, path in FILES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_folder_of_the_package_has_an_init() -> None:
    assert {path.parent for path in MODULES.values()} == {path.parent for path in INITS.values()}
