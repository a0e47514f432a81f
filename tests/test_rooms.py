"""The rest of the program works without a part of it that is not the core: each is deleted in a copy.

``pyproject.toml`` lists the modules of each room, and who may import them; ``make lint`` checks that. ``BESIDE`` lists
the tests, the tools and the pages that go with them.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.source_files import ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
ROOMS = {contract["name"]: contract["protected_modules"] for contract in CONTRACTS if contract["type"] == "protected"}
"""The modules and packages of each room."""
BESIDE = {
    "processes": "tests/devices/test_meeting.py tests/devices/test_parallel.py tests/devices/test_sync_batch_norm.py "
    "tests/cli/test_train_distributed.py tests/cluster tests/helpers/cluster.py tools/train_parallel.py "
    "tools/train_distributed.py tools/train.sbatch",
    "diagnosis": "tests/diagnosis tests/cli/test_diagnose.py tests/helpers/diagnoses.py docs/diagnosis.md",
    "synthetic": "tests/synthetic tools/make_synthetic.py",
    "tracking": "tests/inference/tracking docs/videos.md",
    "video": "tests/inference/media/test_video.py",
    "page": "tests/inference/test_app.py tests/cli/test_app.py",
    "ray": "tests/inference/test_ray_data.py",
    "importers": "tests/annotations/importing tests/training/test_from_annotations.py docs/formats.md",
    "drafting": "tests/annotations/test_skeleton_draft.py tests/training/test_from_annotations.py "
    "tests/skeleton/test_custom_skeleton.py docs/own_object.md",
    "checks": "tests/annotations/checks",
    "exports": "tests/inference/exports docs/deployment.md",
    "published": "tests/checkpoints/published tests/cli/test_weights.py",
    "teacher": "tests/training/test_teacher.py",
}
COMMANDS = {
    "processes": "train-parallel train-distributed",
    "diagnosis": "diagnose",
    "synthetic": "make-synthetic",
    "page": "app",
    "exports": "export-onnx",
    "published": "weights",
}
"""Commands that go with a room."""

WORK = """
import sys
from pathlib import Path
from posenet.cli.main import main

coco, image = Path(sys.argv[1]), sys.argv[2]
small = "model.stacks=1 model.width=16 model.growth=2 inference.height=64".split()
stores = [f"data.{split}={split}.h5" for split in ("train", "val")]
for split in ("train", "val"):
    annotations = str(coco / "annotations" / f"person_keypoints_{split}2017.json")
    images = str(coco / f"{split}2017")
    built = ["--images", images, "--annotations", annotations, "--output", f"{split}.h5"]
    assert main(["build-hdf5", *built, "--workers", "1"]) == 0
short = ["train.input_size=64", "train.batch_size=2", "train.epochs=1", "data.workers=0", *small, *stores]
assert main(["train", "--config", "tiny", "--max-steps", "3", "--checkpoint-path", "run", "--set", *short]) == 0
network = ["--checkpoint", "run/last.pth", "--set", "inference.height=64"]
assert main(["evaluate", "--images", images, "--annotations", annotations, "--output", "found.json", *network]) == 0
assert main(["predict", image, "--json", "people.json", "--output", "drawn", *network]) == 0
assert all(Path(name).exists() for name in ("found.json", "people.json", "drawn"))
"""


def run(folder: Path, *words: str | Path) -> str:
    """Run Python with the package of the copy; return what it prints."""
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The tree without a room."""
    for name in ("posenet", "tests", "tools", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "config").symlink_to(os.readlink(ROOT / "config"))
    for file in [*filter(Path.is_file, ROOT.iterdir()), *ROOT.glob("*/README.md")]:
        (tmp_path / file.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / file.relative_to(ROOT))
    for module in ROOMS[request.param]:
        path = tmp_path.joinpath(*module.split("."))
        remove(path if path.is_dir() else path.with_suffix(".py"))
    for name in BESIDE[request.param].split():
        remove(tmp_path / name)
    package = tmp_path / "posenet" / "__init__.py"  # the public names
    lines = package.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not any(module in line for module in ROOMS[request.param])]
    package.write_text("".join(kept), encoding="utf-8")
    return tmp_path


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def test_the_table_is_complete() -> None:
    assert ROOMS.keys() == BESIDE.keys()
    assert all((ROOT / name).exists() for names in BESIDE.values() for name in names.split())


@pytest.mark.slow
@pytest.mark.parametrize("copy", ROOMS, indirect=True)
def test_without_a_room_the_rest_builds_trains_evaluates_and_predicts(
    request: pytest.FixtureRequest, copy: Path, tiny_coco: Path
) -> None:
    room = request.node.callspec.params["copy"]
    image = next((tiny_coco / "val2017").iterdir())
    run(copy, "-c", WORK, tiny_coco, image)
    tools = run(copy, "-m", "posenet", "--help")
    assert not any(f"  {command} " in tools for command in COMMANDS.get(room, "").split())
    run(copy, "-m", "pytest", "--collect-only", "-q", "-m", "", "tests")


@pytest.mark.torture
@pytest.mark.parametrize("copy", ROOMS, indirect=True)
def test_without_a_room_the_tests_of_the_rest_pass(copy: Path) -> None:
    """But those of the pages, which describe the whole."""
    run(copy, "-m", "pytest", "-q", "tests", "--ignore", "tests/docs", "--ignore", "tests/test_rooms.py")
