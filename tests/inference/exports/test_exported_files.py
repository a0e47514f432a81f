"""``export-onnx``, and ``predict`` and ``evaluate`` with its files in an environment without PyTorch."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from posenet.cli.main import run_tool
from posenet.images import write_image
from tests.helpers.networks import write_checkpoint
from tests.helpers.spot_networks import spot_people_image, write_spot_split

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


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, shape in enumerate([(200, 300), (160, 330), (190, 130)]):
        write_image(tmp_path / "photos" / f"{number}.png", spot_people_image(*shape, 1, number))
    return tmp_path / "photos"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny.pth", "inference.height=64")


def run_without_pytorch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_PYTORCH, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_predict_needs_no_pytorch(spot_file: Path, photos: Path, tmp_path: Path, runtime: str) -> None:
    flags = ["--checkpoint", spot_file, "--backend", runtime, "--amp", "off", "--min-score", "0", photos]
    outputs = ["--json", tmp_path / "people.json", "--output", tmp_path / "drawings"]
    done = run_without_pytorch("predict", *flags, *outputs)
    assert done.returncode == 0, done.stderr
    assert run_tool("predict", list(map(str, [*flags, "--json", tmp_path / "same.json"]))) == 0
    people = json.loads((tmp_path / "people.json").read_text())
    assert len(people) == 3 and people == json.loads((tmp_path / "same.json").read_text())
    assert len(list((tmp_path / "drawings").iterdir())) == 3


def test_evaluate_needs_no_pytorch(spot_file: Path, tmp_path: Path) -> None:
    annotations = write_spot_split(tmp_path)
    flags = ["--images", tmp_path, "--annotations", annotations, "--checkpoint", spot_file]
    done = run_without_pytorch("evaluate", *flags, "--output", tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    assert "8 images" in done.stdout and " AP " in done.stdout
    assert {result["image_id"] for result in json.loads((tmp_path / "results.json").read_text())} == set(range(1, 9))


def test_what_needs_pytorch_says_so_in_one_line(tmp_path: Path, photos: Path) -> None:
    store = tmp_path / "a.h5"
    store.touch()
    training = ["train", "--set", f"data.train={store}"]
    for words in (["predict", "--checkpoint", "a.pth", photos, "--json", tmp_path / "a.json"], training):
        done = run_without_pytorch(*words)
        assert done.returncode == 2 and "PyTorch is not installed" in done.stderr and done.stderr.count("\n") == 1


def test_a_checkpoint_is_exported_in_float32_and_8_bits(
    checkpoint: Path, photos: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    pytest.importorskip("onnxruntime")
    calibration = ["--int8", "--calibrate", str(photos)]
    for name, words, precision in (
        ("a.onnx", [], "float32"),
        ("b.onnx", calibration, "int8"),
    ):
        output = "-" if precision == "int8" else str(tmp_path / name)
        argv = ["--checkpoint", str(checkpoint), "--output", output, "--set", "inference.flip=true"]
        assert run_tool("export-onnx", [*argv, *words]) == 0
        printed, messages = capsysbinary.readouterr()
        if output == "-":
            (tmp_path / name).write_bytes(printed)
            printed = messages
        facts = r": \d\.\d MB, input images, output maps; see posenet docs deployment\n"
        assert re.search(f"wrote {output}{facts}".encode(), printed)
        assert (f"with {output} and with {checkpoint}\n".encode() in printed) == (precision == "int8")
        content = (tmp_path / name).read_bytes()
        assert f'"precision": "{precision}"'.encode() in content and b'"flip": true' in content
        argv = ["--checkpoint", tmp_path / name, photos, "--csv", tmp_path / f"{name}.csv", "--min-score", "0"]
        assert run_tool("predict", [*map(str, argv), "--quiet"]) == 0


def test_wrong_flags_of_the_exporter_are_one_line(
    checkpoint: Path, spot_file: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "a.onnx"
    link = tmp_path / "link.onnx"
    link.symlink_to(checkpoint)
    for network, path, words, message in (
        (spot_file, output, [], "is an exported file already"),
        (checkpoint, output, ["--int8"], "--calibrate IMAGES"),
        (checkpoint, output, ["--calibrate", photos], "need each other"),
        (checkpoint, tmp_path / "a.pt", [], "a.pt does not end in .onnx, the only format that is written"),
        (checkpoint, link, ["--overwrite"], "would replace an input"),
    ):
        argv = ["--checkpoint", network, "--output", path, *words]
        assert run_tool("export-onnx", list(map(str, argv))) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not output.exists()
