"""The exported file: ONNX Runtime compared with PyTorch, and the example in docs/deployment.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.onnx_metadata import OnnxMetadata

from posenet.checkpoints.file import FORMAT
from posenet.cli.main import run_tool
from posenet.inference.decoder.people import decode_candidates
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import InferenceConfig, config_from_dict, config_to_dict
from posenet.skeleton import COCO
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from tests.helpers.networks import random_network
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image

REASON = "ONNX Runtime is not installed: pip install posenet[export]"
DEPLOYMENT = Path(__file__).parents[2] / "docs" / "deployment.md"


def pad_images(images):
    """The inputs of the file: the images in one batch, and their sizes."""
    sizes = np.array([image.shape[:2] for image in images])
    height, width = -(-sizes.max(0) // 64) * 64
    batch = np.full((len(images), height, width, 3), 128, np.uint8)
    for padded, image in zip(batch, images):
        padded[: image.shape[0], : image.shape[1]] = image
    return {"images": batch, "sizes": sizes.astype(np.int64)}


@pytest.fixture(scope="module")
def spot_file(tmp_path_factory):
    """The exported file of a network that finds people."""
    pytest.importorskip("onnx", reason=REASON)
    from posenet.inference.onnx_export import export_onnx

    path = tmp_path_factory.mktemp("onnx") / "spots.onnx"
    export_onnx(LinearSpotNetwork(), CandidateSelector(max_peaks=20), path, 256)
    return path


def open_session(path):
    runtime = pytest.importorskip("onnxruntime", reason=REASON)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "sizes", [[(256, 256)], [(200, 310), (256, 320), (130, 190)], [(100, 64)], [(150, 640)] * 2], ids=str
)
def test_onnx_runtime_and_pytorch_find_the_same_people(spot_file, sizes):
    images = [spot_people_image(*size, num_people=max(1, size[1] // 90), seed=i) for i, size in enumerate(sizes)]
    outputs = open_session(spot_file).run(None, pad_images(images))
    for image, *arrays in zip(images, *outputs):
        found = decode_candidates(*arrays)
        expected = Predictor(LinearSpotNetwork(), InferenceConfig(height=len(image)))(image)
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
    metadata = session.get_modelmeta().custom_metadata_map
    assert {key: metadata[key] for key in ("height", "multiple", "padding", "stride")} == {
        "height": "192",
        "multiple": "64",
        "padding": "128",
        "stride": "4",
    }
    assert skeleton_from_table(json.loads(metadata["skeleton"])) == COCO
    inputs = pad_images([spot_people_image(128, 192, 2), spot_people_image(100, 140, 1)])
    peaks, _, evidence = session.run(None, inputs)
    with torch.inference_mode():
        images = torch.from_numpy(inputs["images"]).permute(0, 3, 1, 2).float() / 255
        expected = CandidateSelector()(network.eval().heatmaps(images), (torch.from_numpy(inputs["sizes"]) + 3) // 4)
    assert (peaks[..., 2] > 0).sum() > 100
    np.testing.assert_allclose(np.sort(peaks[..., 2]), np.sort(expected[0][..., 2].numpy()), atol=1e-3)
    np.testing.assert_allclose(np.sort(evidence)[:, -50:], np.sort(expected[2].numpy())[:, -50:], atol=5e-3)


def test_programs_that_infer_shapes_understand_the_file(tmp_path, capfd):
    onnx = pytest.importorskip("onnx", reason=REASON)
    pytest.importorskip("sympy")
    preprocessing = pytest.importorskip("onnxruntime.quantization.shape_inference", reason=REASON)
    from posenet.inference.onnx_export import export_onnx

    path = tmp_path / "a.onnx"
    export_onnx(random_network(stacks=2), CandidateSelector(max_peaks=20, max_limbs=300), path, 128)
    model = onnx.load(path)
    sizes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in [*model.graph.input, *model.graph.output]
    }
    assert sizes == {
        "images": ["batch", "height", "width", 3],
        "sizes": ["batch", 2],
        "peaks": ["batch", 18, 20, 3],
        "pairs": ["batch", 300, 3],
        "evidence": ["batch", 300],
    }
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    preprocessing.quant_pre_process(path, tmp_path / "prepared.onnx")
    prepared = open_session(tmp_path / "prepared.onnx")
    assert "unused" not in capfd.readouterr().err.lower()
    inputs = pad_images([spot_people_image(128, 192, 2)])
    for found, expected in zip(prepared.run(None, inputs), open_session(path).run(None, inputs)):
        np.testing.assert_allclose(np.sort(found, axis=None), np.sort(expected, axis=None), atol=1e-3)


def test_opencv_runs_the_file(tmp_path):
    pytest.importorskip("onnx", reason=REASON)
    if int(cv2.__version__.split(".")[0]) < 5:
        pytest.skip("OpenCV runs the file from version 5 on")
    from posenet.inference.onnx_export import export_onnx

    path = tmp_path / "a.onnx"
    export_onnx(random_network(stacks=1), CandidateSelector(max_peaks=20), path, 128)
    inputs = pad_images([spot_people_image(128, 192, 2)])
    network = cv2.dnn.readNetFromONNX(str(path))
    for name, value in inputs.items():
        network.setInput(value, name)
    peaks = network.forward(["peaks", "pairs", "evidence"])[0]
    expected = open_session(path).run(None, inputs)[0]
    assert (peaks[..., 2] > 0).sum() > 50
    np.testing.assert_allclose(np.sort(peaks[..., 2]), np.sort(expected[..., 2]), atol=1e-3)


def test_the_file_says_what_it_leaves_out_of_its_checkpoint(tmp_path, capsys):
    pytest.importorskip("onnx", reason=REASON)
    sections = {
        "model": {"stacks": 1, "width": 16, "growth": 2},
        "inference": {"height": 192, "flip": True, "scales": [0.5, 1.0], "part_threshold": 0.2, "max_width": 1280},
        "data": {"exif_frame": "stored"},
    }
    config = config_from_dict(sections)
    network = random_network(stacks=1)
    checkpoint, path = tmp_path / "a.pth", tmp_path / "a.onnx"
    torch.save({"format": FORMAT, "model": network.state_dict(), "config": config_to_dict(config)}, checkpoint)
    assert run_tool("export-onnx", ["--checkpoint", str(checkpoint), "--output", str(path)]) == 0
    assert "leaves out flip averaging" in capsys.readouterr().out
    metadata = OnnxMetadata.from_properties(open_session(path).get_modelmeta().custom_metadata_map, str(path))
    assert "flip" in metadata.left_out and "[0.5, 1.0]" in metadata.left_out
    assert (metadata.part_threshold, metadata.exif_frame, metadata.precision) == (0.2, "stored", "float32")
    assert len(metadata.network) == 64
    assert metadata.settings.max_width == 1280


def test_the_file_holds_the_skeleton_of_its_people(tmp_path):
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
    stored = skeleton_from_table(json.loads(session.get_modelmeta().custom_metadata_map["skeleton"]))
    arrays = session.run(None, pad_images([image]))
    found = decode_candidates(*(array[0] for array in arrays), skeleton=stored)
    expected = Predictor.from_checkpoint(tmp_path / "a.pth", device="cpu", amp="off")(image)
    assert stored == skeleton and len(found) == len(expected) > 5
    np.testing.assert_allclose([one.score for one in found], [one.score for one in expected], atol=1e-3)


def test_the_example_in_the_docs_runs_without_pytorch_and_opencv(spot_file, tmp_path):
    pytest.importorskip("onnxruntime", reason=REASON)
    examples = re.findall(r"```python\n(.*?)```", DEPLOYMENT.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [example for example in examples if "onnxruntime" in example]
    image = spot_people_image(200, 300, 3)
    np.save(tmp_path / "image.npy", image)
    (tmp_path / "demo.onnx").write_bytes(spot_file.read_bytes())
    blocked = "import sys\nsys.modules.update(dict.fromkeys(('torch', 'cv2', 'h5py', 'pycocotools', 'tqdm', 'onnx')))\n"
    command = [sys.executable, "-c", blocked + code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    people = Predictor(LinearSpotNetwork(), InferenceConfig(height=200))(image)
    assert len(people) == 3
    shown = [[float(word) for word in re.findall(r"[\d.]+", line)] for line in done.stdout.splitlines()]
    for line, person in zip(shown, people, strict=True):
        np.testing.assert_allclose(line, [person.score, *person.keypoints[person.found].ravel()], atol=0.1)


def test_the_tool_refuses_what_it_cannot_do(monkeypatch, tmp_path, capsys):
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
