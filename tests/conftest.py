"""Shared fixtures: data sets of drawn people, and real data if the environment names it. Threads are limited to one."""

import gc
import logging
import os
import re
import unittest.mock
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest
import torch
from hypothesis import settings

from posenet.inference.networks import RUNTIMES
from tests.helpers.drawn_data import build_both
from tests.helpers.drawn_people import write_dataset
from tests.helpers.spot_networks import export_spot_network

# Forked processes lack OpenMP's other threads, and would wait for them forever.
torch.set_num_threads(1)
cv2.setNumThreads(0)
# Tests look at messages of runs, which show nothing that the host of a run does not want to see.
logging.getLogger("posenet").setLevel(logging.INFO)
# A forked process must not collect objects of its parent: a TCPStore, or a session of ONNX Runtime, would wait forever
# for threads that the fork has not copied.
os.register_at_fork(after_in_child=gc.freeze)

# The examples are the same in every run, so that a failure is one of the change that is tested.
settings.register_profile("test", max_examples=30, deadline=None, derandomize=True)
settings.register_profile("torture", max_examples=2000, deadline=None)

HEAVY = r"test_(benchmark|examples|train|resume|onnx_export|data_sets|teacher|browser|golden_curve)\.py"
"""Modules that take longest; the last of several processes must not begin with one of them."""


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("torture" if config.option.markexpr == "torture" else "test")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Heavy modules start first. ``make torture`` runs the properties too, with more examples and others every time."""
    items.sort(key=lambda item: not re.search(HEAVY, item.nodeid))
    for item in items:
        if config.option.markexpr == "torture" and getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.torture)


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where checkpoints are converted to, instead of the user's folder."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def same_environment(cache_folder: str) -> Iterator[None]:
    """Tools set variables for their processes; a later test must not look for these."""
    with unittest.mock.patch.dict(os.environ, POSENET_HOME=cache_folder):
        yield


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the curves takes longer than a tiny training."""
    monkeypatch.setattr("posenet.training.log.has_matplotlib", lambda: False)


def _folder_from_environment(variable: str) -> Path:
    value = os.environ.get(variable)
    if not value:
        pytest.skip(f"{variable} is not set")
    folder = Path(value)
    if not folder.is_dir():
        pytest.fail(f"{variable}={value} is not a folder")
    return folder


@pytest.fixture(scope="session")
def coco_sample() -> Path:
    """A COCO-layout folder with real photographs (annotations/, train2017/, val2017/)."""
    return _folder_from_environment("POSENET_COCO_SAMPLE")


@pytest.fixture(scope="session")
def parity() -> Path:
    """Measured fixtures that contain COCO annotations; for this reason they are not part of the project."""
    return _folder_from_environment("POSENET_PARITY")


@pytest.fixture(scope="session")
def tiny_coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A COCO-layout folder with drawn people: train2017 of 6 and val2017 of 3 small images."""
    folder = tmp_path_factory.mktemp("coco")
    write_dataset(folder, train=6, val=3, seed=23)
    return folder


@pytest.fixture(scope="session")
def stores(tiny_coco: Path) -> dict[str, Path]:
    """The stores of ``tiny_coco``: train and val."""
    return build_both(tiny_coco)


@pytest.fixture(scope="session")
def spot_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported network that finds a nose where an image is red, a neck at green and a right shoulder at blue."""
    pytest.importorskip("posenet.inference.exports", reason="this copy has no exports")
    pytest.importorskip("onnx", reason="exporting needs onnx")
    pytest.importorskip("onnxruntime", reason="running an exported file needs a runtime")
    return export_spot_network(tmp_path_factory.mktemp("spots") / "spots.onnx")


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """The name of a package that runs exported networks; the test is skipped where it is not installed."""
    pytest.importorskip(request.param, reason=f"pip install simplepose[{request.param}]")
    name: str = request.param
    return name
