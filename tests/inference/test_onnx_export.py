"""The ONNX file: ONNX Runtime against PyTorch, and the example of docs/deployment.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from posenet.checkpoints.file import FORMAT
from posenet.cli.main import run_tool
from posenet.inference.decoder.assembly import decode_candidates
from posenet.inference.decoder.device_candidates import Candidates
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import config_from_dict, config_to_dict
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from tests.helpers.networks import random_network

REASON = "ONNX Runtime is not installed: pip install posenet[export]"
DEPLOYMENT = Path(__file__).parents[2] / "docs" / "deployment.md"


class Lamps(nn.Module):
    """Sees a nose where the image is red, a neck where it is green and a right shoulder where it is blue."""

    def __init__(self):
        super().__init__()
        self.colours = nn.Conv2d(3, COCO.num_channels, 1)
        nn.init.zeros_(self.colours.weight)
        nn.init.zeros_(self.colours.bias)
        with torch.no_grad():
            self.colours.bias[COCO.part_channels] = 0.8
            for colour, name in enumerate(("Rsho", "neck", "nose")):
                self.colours.weight[COCO.num_parts + COCO.index(name), colour] = 1

    def heatmaps(self, images):
        return self.colours(F.avg_pool2d(images * 1.6 - images.sum(1, keepdim=True) * 0.8, 4))


def picture(height, width, people, seed=0):
    """Black, with soft spots: a nose, a neck below it and a right shoulder beside that for each person."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3))
    y, x = np.mgrid[:height, :width]
    for left in np.linspace(40, width - 40, people):
        top = rng.uniform(30, height - 60)
        for colour, (u, v) in enumerate(((left - 18, top + 31), (left, top + 30), (left, top))):
            spot = rng.uniform(200, 250) * np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * 6**2))
            image[..., colour] = np.maximum(image[..., colour], spot)
    return image.round().astype(np.uint8)


def padded(images):
    """The images in one batch, and their sizes."""
    sides = np.array([image.shape[:2] for image in images])
    height, width = -(-sides.max(0) // 64) * 64
    batch = np.full((len(images), height, width, 3), 128, np.uint8)
    for place, image in zip(batch, images):
        place[: image.shape[0], : image.shape[1]] = image
    return {"images": batch, "sizes": sides.astype(np.int64)}


@pytest.fixture(scope="module")
def lamps(tmp_path_factory):
    """The file of a network that finds people, exported once."""
    pytest.importorskip("onnx", reason=REASON)
    from posenet.inference.onnx_export import export_onnx

    path = tmp_path_factory.mktemp("onnx") / "lamps.onnx"
    export_onnx(Lamps(), Candidates(max_peaks=20), path, 256)
    return path


def open_session(path):
    runtime = pytest.importorskip("onnxruntime", reason=REASON)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "sizes", [[(256, 256)], [(200, 310), (256, 320), (130, 190)], [(100, 64)], [(150, 640)] * 2], ids=str
)
def test_onnx_runtime_and_pytorch_find_the_same_people(lamps, sizes):
    """Whatever the batch and its size."""
    images = [picture(*size, people=max(1, size[1] // 90), seed=i) for i, size in enumerate(sizes)]
    answers = open_session(lamps).run(None, padded(images))
    for image, *arrays in zip(images, *answers):
        found = decode_candidates(*arrays)
        expected = Predictor(Lamps(), height=len(image))(image)
        assert len(found) == len(expected) >= max(1, image.shape[1] // 90)
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one.keypoints, other.keypoints, atol=0.05)
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_a_checkpoint_is_exported_with_its_network(tmp_path, capsys):
    pytest.importorskip("onnx", reason=REASON)
    network = random_network(stacks=1)
    config = config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 2}, "inference": {"height": 192}})
    checkpoint, path = tmp_path / "a.pth", tmp_path / "new" / "a.onnx"
    torch.save({"format": FORMAT, "model": network.state_dict(), "config": config_to_dict(config)}, checkpoint)
    assert run_tool("export-onnx", ["--checkpoint", str(checkpoint), "--output", str(path)]) == 0
    assert "wrote" in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir()] == ["a.onnx"]

    session = open_session(path)
    facts = session.get_modelmeta().custom_metadata_map
    assert facts["height"] == "192" and skeleton_from_table(json.loads(facts["skeleton"])) == COCO
    inputs = dict(padded([picture(128, 192, 2), picture(100, 140, 1)]).items())
    peaks, _, evidence = session.run(None, inputs)
    with torch.inference_mode():
        images = torch.from_numpy(inputs["images"]).permute(0, 3, 1, 2).float() / 255
        expected = Candidates()(network.eval().heatmaps(images), (torch.from_numpy(inputs["sizes"]) + 3) // 4)
    assert (peaks[..., 2] > 0).sum() > 100
    np.testing.assert_allclose(np.sort(peaks[..., 2]), np.sort(expected[0][..., 2].numpy()), atol=1e-3)
    np.testing.assert_allclose(np.sort(evidence)[:, -50:], np.sort(expected[2].numpy())[:, -50:], atol=5e-3)


def test_a_file_tells_which_skeleton_its_people_have(tmp_path):
    pytest.importorskip("onnxruntime", reason=REASON)
    skeleton = skeleton_from_table(
        {
            "keypoints": ["left ear", "right ear", "n\u00f6se"],
            "derived": {"mid": ["left ear", "right ear"]},
            "parts": [["left ear", "mid"], ["right ear", "mid"], ["mid", "n\u00f6se"]],
            "left_right": [["left ear", "right ear"]],
        }
    )
    model = {"stacks": 1, "width": 16, "growth": 2, "skeleton": skeleton_to_table(skeleton)}
    config = config_from_dict({"model": model, "inference": {"height": 128}})
    network = random_network(1, skeleton)
    network.stacks[0].heads[0].output.weight.data *= 10
    torch.save({"format": FORMAT, "model": network.state_dict(), "config": config_to_dict(config)}, tmp_path / "a.pth")
    argv = ["--checkpoint", str(tmp_path / "a.pth"), "--output", str(tmp_path / "a.onnx")]
    assert run_tool("export-onnx", argv) == 0

    image = np.random.default_rng(0).integers(0, 256, (128, 192, 3), np.uint8)
    session = open_session(tmp_path / "a.onnx")
    told = skeleton_from_table(json.loads(session.get_modelmeta().custom_metadata_map["skeleton"]))
    arrays = session.run(None, padded([image]))
    found = decode_candidates(*(array[0] for array in arrays), skeleton=told)
    expected = Predictor.from_checkpoint(tmp_path / "a.pth", device="cpu", amp="off")(image)
    assert told == skeleton and len(found) == len(expected) > 5
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], atol=1e-3)


def test_the_example_in_the_docs_runs_on_numpy_alone(lamps, tmp_path):
    pytest.importorskip("onnxruntime", reason=REASON)
    examples = re.findall(r"```python\n(.*?)```", DEPLOYMENT.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [example for example in examples if "onnxruntime" in example]
    image = picture(200, 300, 3)
    np.save(tmp_path / "picture.npy", image)
    (tmp_path / "demo.onnx").write_bytes(lamps.read_bytes())
    blocked = "import sys\nsys.modules.update(dict.fromkeys(('torch', 'cv2', 'h5py', 'pycocotools', 'tqdm', 'onnx')))\n"
    command = [sys.executable, "-c", blocked + code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    people = Predictor(Lamps(), height=200)(image)
    assert len(people) == 3
    shown = [[float(word) for word in re.findall(r"[\d.]+", line)] for line in done.stdout.splitlines()]
    for line, person in zip(shown, people, strict=True):
        np.testing.assert_allclose(line, [person.score, *person.keypoints[person.found].ravel()], atol=0.1)


def test_the_tool_says_what_it_lacks(monkeypatch, tmp_path, capsys):
    import importlib.util

    config = config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 0}})
    checkpoint = tmp_path / "a.pth"
    torch.save(
        {"format": FORMAT, "model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)},
        checkpoint,
    )
    argv = ["--checkpoint", str(checkpoint), "--output", str(tmp_path / "a.onnx")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run_tool("export-onnx", argv) == 2
    assert "posenet[export]" in capsys.readouterr().err
    assert run_tool("export-onnx", [*argv, "--max-peaks", "400"]) == 2
    assert "1 to 256" in capsys.readouterr().err
    assert run_tool("export-onnx", ["--checkpoint", str(checkpoint), "--output", str(checkpoint)]) == 2
    assert "would replace an input" in capsys.readouterr().err
    assert not (tmp_path / "a.onnx").exists()
