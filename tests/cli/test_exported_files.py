"""``predict`` and ``evaluate`` with an exported file, in an environment without PyTorch, and with other backends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.images import write_image
from posenet.inference.backends.graph import RUNTIMES
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.onnx_export import export_onnx
from posenet.inference.predictor import Predictor
from posenet.settings import InferenceConfig
from tests.helpers.runtimes import require_runtime
from tests.helpers.spot_data import export_spot_network, write_spot_split
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image

pytest.importorskip("onnx", reason="exporting needs onnx: pip install posenet[export]")

WITHOUT_PYTORCH = """
import sys
class BlockedImports:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "onnx"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, BlockedImports())
from posenet.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return require_runtime(request.param)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_spot_network(tmp_path_factory.mktemp("onnx") / "spots.onnx")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, shape in enumerate([(200, 300), (160, 330), (190, 130)]):
        write_image(tmp_path / "photos" / f"{number}.png", spot_people_image(*shape, 1, number))
    return tmp_path / "photos"


def run_without_pytorch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_PYTORCH, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_predict_needs_no_pytorch(exported: Path, photos: Path, tmp_path: Path, runtime: str) -> None:
    flags = ["--checkpoint", exported, "--backend", runtime, "--threads", "1", "--amp", "off", "--min-score", "0"]
    outputs = ["--json", tmp_path / "people.json", "--output", tmp_path / "drawings"]
    done = run_without_pytorch("predict", *flags, *outputs, photos)
    assert done.returncode == 0, done.stderr
    predictor = Predictor(LinearSpotNetwork(), InferenceConfig(height=192))
    expected = [person for path in sorted(photos.iterdir()) for person in predictor(path)]
    found = json.loads((tmp_path / "people.json").read_text())
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected):
        np.testing.assert_allclose(np.reshape(one["keypoints"], (17, 3)), other.to_coco(), atol=2e-3)  # three decimals
    assert len(list((tmp_path / "drawings").iterdir())) == 3


def test_evaluate_needs_no_pytorch(
    exported: Path, tmp_path: Path, runtime: str, capsys: pytest.CaptureFixture[str]
) -> None:
    annotations = write_spot_split(tmp_path)
    flags = ["--images", tmp_path, "--annotations", annotations, "--backend", runtime, "--checkpoint", exported]
    done = run_without_pytorch("evaluate", *flags, "--output", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    assert "8 images" in done.stdout and " AP " in done.stdout
    assert {result["image_id"] for result in json.loads((tmp_path / "results.json").read_text())} == set(range(1, 9))
    capsys.readouterr()
    assert run_tool("evaluate", list(map(str, flags))) == 0
    assert capsys.readouterr().out.splitlines()[:3] == done.stdout.splitlines()[1:4]


def test_other_tools_name_pytorch_in_one_line(tmp_path: Path) -> None:
    done = run_without_pytorch("predict", "--checkpoint", tmp_path / "a.pth", tmp_path, "--json", tmp_path / "a.json")
    assert done.returncode == 2
    done = run_without_pytorch(
        "predict", "--checkpoint", tmp_path / "a.onnx", tmp_path, "--nproc", "2", "--output", tmp_path
    )
    assert done.returncode == 2 and "with an exported file and in one process" in done.stderr
    done = run_without_pytorch("benchmark", "network")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "PyTorch is not installed (the package torch)" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--flip"], "leave out flip"),
        (["--scales", "1", "2"], "leave out scales"),
        (["--backend", "torch"], "which PyTorch cannot run; use backend openvino or onnxruntime"),
        (["--set", "inference.height=64"], "leave out --config and --set"),
        (["--heatmaps", "sheets"], "outputs no maps"),
    ],
    ids=str,
)
def test_what_an_exported_file_cannot_do_is_refused_in_one_line(
    flags: list[str], message: str, exported: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--checkpoint", exported, photos, "--json", tmp_path / "people.json", *flags]
    assert run_tool("predict", list(map(str, words))) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "people.json").exists()


def test_resuming_with_another_backend_is_refused(
    exported: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Backends differ in precision and rounding, so one file must not contain the people of two."""
    words = ["--checkpoint", exported, photos, "--json", tmp_path / "people.jsonl", "--resume", "--quiet"]
    for runtime in RUNTIMES:
        require_runtime(runtime)
    one, other = RUNTIMES
    assert run_tool("predict", [*map(str, words), "--backend", one]) == 0
    capsys.readouterr()
    assert run_tool("predict", [*map(str, words), "--backend", other]) == 2
    assert "was written with other --backend" in capsys.readouterr().err


def test_resuming_with_the_file_of_another_network_is_refused(
    exported: Path, photos: Path, tmp_path: Path, runtime: str, capsys: pytest.CaptureFixture[str]
) -> None:
    network = LinearSpotNetwork()
    network.colours.bias.data += 0.01
    export_onnx(network, CandidateSelector(max_peaks=20), tmp_path / "other.onnx", height=192)
    people = tmp_path / "people.jsonl"
    words = [str(photos), "--json", str(people), "--resume", "--quiet", "--backend", runtime, "--checkpoint"]
    assert run_tool("predict", [*words, str(exported)]) == 0
    content = people.read_bytes()
    capsys.readouterr()
    assert run_tool("predict", [*words, str(tmp_path / "other.onnx")]) == 2
    error = capsys.readouterr().err
    assert f"{people} was written with other weights" in error and error.count("\n") == 1
    assert people.read_bytes() == content
