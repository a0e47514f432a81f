"""An exported network, and the same one loaded once by each runtime: OpenVINO takes a second to compile it."""

from __future__ import annotations

from pathlib import Path

import pytest
from posenet.inference.backends.graph import RUNTIMES, Graph, GraphOptions, load_graph

from tests.helpers.runtimes import require_runtime
from tests.helpers.spot_data import export_spot_network


@pytest.fixture(scope="session", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """The name of each runtime."""
    return require_runtime(request.param)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an exported ``LinearSpotNetwork``."""
    pytest.importorskip("onnx", reason="exporting needs onnx: pip install posenet[export]")
    return export_spot_network(tmp_path_factory.mktemp("onnx") / "spots.onnx")


@pytest.fixture(scope="session")
def graph(runtime: str, exported: Path) -> Graph:
    """The exported network as the runtime has loaded it, in float32 on one thread."""
    return load_graph(runtime, exported.read_bytes(), str(exported), GraphOptions("cpu", "off", 1))
