"""The examples in the documentation work.

Each page runs in its own folder, block by block: all commands of ``sh`` blocks, and ``python`` blocks that begin with
```` ```python run ````. TOML and Python blocks whose first line is the name of a file are written to it. The folder
holds COCO and its stores, weights, and the files of ``make demo``; all are synthetic and tiny. ``SHORTER`` adds
arguments that make networks small and training short.

``NOT_RUN`` lists the commands that cannot run in a test. Their arguments are checked instead.
"""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import benchmark
import cv2
import numpy as np
import pytest
import torch

from posenet import PoseNet
from posenet.cli import main as cli
from posenet.cli.options import with_dashes
from posenet.data.build import build_store
from posenet.images import write_image
from posenet.settings import config_to_dict, load_config
from posenet.settings.reading import EXPERIMENTS_FOLDER
from tests.helpers.documentation import PAGES, Command, page_name, parse_commands, read_blocks
from tests.helpers.drawn_people import write_dataset
from tests.helpers.other_formats import (
    read_document,
    write_crowdpose,
    write_cvat_xml,
    write_label_studio_json,
    write_labelme,
    write_lsp,
    write_yolo_pose,
)
from tests.helpers.source_files import ROOT
from tests.helpers.videos import FakeCapture, write_animation, write_video

NOT_RUN = {
    "installs packages, or is another program": r"make |source |pip install |tensorboard |wait|cat |cd |curl |ffmpeg ",
    "starts processes": r"torchrun |srun |sbatch |.*(train-|train_)distributed(\.py)? --nproc|.*evaluate.* --nproc ",
    "downloads": (
        r"data/download_coco\.sh|posenet (weights fetch|\w+ --checkpoint) simplepose|posenet predict (?!.*--checkpoint)"
        r"|posenet train .*(teacher=|--weights )simplepose"
    ),
    "needs a server, a camera or a GPU": (
        r"posenet app |posenet predict .*(rtsp://|https://|/dev/video0 |--device cuda[: ])|.*--devices "
    ),
    "measures for minutes": r"python tools/benchmark\.py |posenet export-onnx .*--int8",
    "stands for any file": r"posenet (annotations import|train) PATH",
}
"""Commands that are not run, as patterns of their beginning, by the reason."""

TINY_NETWORK = ["model.stacks=1", "model.width=16", "model.growth=2"]
SMALL = ["--set", *TINY_NETWORK, "inference.height=64"]
SHORT_TRAINING = [
    *("--max-steps", "12", *SMALL, "train.epochs=1", "train.input_size=64", "train.batch_size=2"),
    *("train.channels_last=false", "data.workers=0", "log.tensorboard=false"),
]
SHORTER = {
    "train": SHORT_TRAINING,
    "train-parallel": SHORT_TRAINING,
    "evaluate": SMALL,
    "predict": SMALL,
    "build-hdf5": ["--workers", "1"],
    "make-synthetic": ["--train", "6", "--val", "2"],
}
"""Arguments that are added to a tool's commands."""

COCO_IDS = (790, 37666, 183872, 211325, 256353, 442450, 463557, 538113)
"""Images of COCO that pages name."""


def has_examples(page: Path) -> bool:
    return any(block.language in ("sh", "python", "toml") for block in read_blocks(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if has_examples(page)], ids=page_name)
def test_the_examples_of_a_page_work(page: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for block in read_blocks(page):
        where = f"{page_name(page)}:{block.line}"
        if block.language in ("toml", "python") and (name := re.match(r"# (\S+\.(toml|py))\n", block.text)):
            Path(name[1]).write_text(block.text, encoding="utf-8")
        if block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "python":
            code = compile(block.text, where, "exec")
            if block.is_run:
                exec(code, {})
        elif block.language == "sh":
            for command in parse_commands(block.text):
                if any(re.match(pattern, str(command)) for pattern in NOT_RUN.values()):
                    check_arguments(command)
                    continue
                assert run_command(command, monkeypatch) == 0, f"{where}: {command}"
        else:
            assert block.language in ("", "text"), f"{where}: use sh, python, toml or text, not {block.language}"


def tool_and_arguments(command: Command) -> tuple[str, list[str]]:
    """The tool that a command runs, directly or through a launcher, and its arguments; other commands have no tool."""
    words = list(command.words)
    for number, word in enumerate(words):
        if word == "posenet":
            return words[number + 1], words[number + 2 :]
        script = re.fullmatch(r"tools/(\w+)\.py", word)
        if script:
            return script[1].replace("_", "-"), words[number + 1 :]
    return "", words


def run_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in this process with the arguments of ``SHORTER``; return its exit status."""
    tool, arguments = tool_and_arguments(command)
    assert tool, f"this test can only run tools of posenet: list {command} in NOT_RUN with the reason"
    if command.piped_from:
        piped = subprocess.run(command.piped_from, check=True, capture_output=True).stdout
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped)))
    remove_outputs_of_the_project(tool, arguments)
    try:
        # An exported file has settings of its own, which were made small when it was exported.
        shorter = [] if any(word.endswith(".onnx") for word in arguments) else SHORTER.get(tool, [])
        return cli.main([tool, *arguments, *shorter])
    except SystemExit as exit_:  # --help
        return int(exit_.code or 0)


def remove_outputs_of_the_project(tool: str, arguments: list[str]) -> None:
    """Remove images, a store or a run that the project folder has and that a command on the page creates."""
    if tool == "make-synthetic":
        shutil.rmtree(arguments[arguments.index("--output") + 1], ignore_errors=True)
    if tool == "build-hdf5" and "--images" in arguments:
        Path(arguments[arguments.index("--output") + 1]).unlink(missing_ok=True)
    if tool.startswith("train") and "--config" in arguments and not {"--resume", "--checkpoint-path"} & set(arguments):
        config = Path(arguments[arguments.index("--config") + 1])
        shutil.rmtree(Path("checkpoints", config.stem), ignore_errors=True)


def check_arguments(command: Command) -> None:
    """Check a command that is not run: targets of make exist; flags, files and settings of a tool are valid."""
    if command.words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        for word in command.words[1:]:
            assert word in targets or "=" in word, f"make has no target {word}"
        return
    tool, arguments = tool_and_arguments(command)
    if tool:
        parser = benchmark.make_parser() if tool == "benchmark" else cli.make_parser(tool, tool)
        error = io.StringIO()
        try:
            with contextlib.redirect_stderr(error):
                args = parser.parse_args(with_dashes(arguments))
        except SystemExit:
            pytest.fail(f"{command}: {error.getvalue().splitlines()[-1]}")
        if "config" in args:
            load_config(args.config, args.overrides)


@pytest.fixture(scope="session")
def project_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the pages assume, tiny."""
    folder = tmp_path_factory.mktemp("project")
    with contextlib.chdir(folder):
        shutil.copytree(EXPERIMENTS_FOLDER, "config")
        shrink_demo_network()
        write_data()
        write_inputs()
        write_exports()
        write_weights()
        stores = ["data.train=data/demo/train.h5", "data.val=data/demo/val.h5"]
        assert cli.main(["train", "--config", "config/demo.toml", *SHORT_TRAINING, *stores]) == 0
    return folder


def shrink_demo_network() -> None:
    """Give the demo the network of ``TINY_NETWORK``, so that Python examples can load its checkpoint."""
    path = Path("config/demo.toml")
    text = path.read_text(encoding="utf-8")
    size = "width = 32\ngrowth = 16\n"
    assert size in text
    path.write_text(text.replace(size, "width = 16\ngrowth = 2\n"), encoding="utf-8")


def write_data() -> None:
    """The data of the demo; and COCO, which has the same images under ids that pages name."""
    write_dataset(Path("data/demo/coco"), train=len(COCO_IDS), val=2, seed=7)
    shutil.copytree("data/demo/coco", "data/coco")
    annotations = Path("data/coco/annotations")
    renumber_images(annotations / "person_keypoints_train2017.json")
    for split in ("train", "val"):
        for folder, store in (("data/coco", f"data/{split}2017.h5"), ("data/demo/coco", f"data/demo/{split}.h5")):
            document = Path(folder, "annotations", f"person_keypoints_{split}2017.json")
            build_store(Path(folder, f"{split}2017"), document, Path(store), workers=1)
    shutil.copytree("data/coco/val2017", "data/coco/test2017")
    shutil.copy(annotations / "person_keypoints_val2017.json", annotations / "image_info_test-dev2017.json")


def renumber_images(path: Path) -> None:
    """Give the images of an annotation file the ids of ``COCO_IDS``."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    new_ids = {image["id"]: new_id for image, new_id in zip(document["images"], COCO_IDS, strict=True)}
    for image in document["images"]:
        image["id"] = new_ids[image["id"]]
    for annotation in document["annotations"]:
        annotation["image_id"] = new_ids[annotation["image_id"]]
    path.write_text(json.dumps(document), encoding="utf-8")


def write_inputs() -> None:
    """Images, a video and a GIF for prediction."""
    images = sorted(Path("data/demo/coco/val2017").glob("*.jpg"))
    shutil.copytree(images[0].parent, "photos")
    shutil.copy(images[0], "photo.jpg")
    shutil.copy(images[0], images[0].with_name("000010000005.jpg"))
    write_image(Path("b.png"), np.zeros((40, 50, 3), np.uint8))
    write_video(Path("clip.mp4"), count=3)
    write_animation(Path("wave.gif"), count=3)


def write_exports() -> None:
    """The drawn images of the demo as other tools export them."""
    images = Path("data/demo/coco/train2017")
    content = read_document(Path("data/demo/coco/annotations/person_keypoints_train2017.json"))
    for name in ("cvat", "label_studio", "label_studio_coco"):
        Path("data", name).mkdir()
    shutil.copytree(images, "data/label_studio_coco/images")
    Path("data/label_studio_coco/result.json").write_text(json.dumps(content), encoding="utf-8")
    write_yolo_pose(Path("data/yolo"), images, content)
    write_cvat_xml(Path("data/cvat"), images, content)
    shutil.copytree(images, "data/cvat/images/default")
    Path("data/cvat/annotations").mkdir()
    Path("data/cvat/annotations/person_keypoints_default.json").write_text(json.dumps(content), encoding="utf-8")
    write_labelme(Path("data/labelme"), images, content)
    write_crowdpose(Path("data/crowdpose"), images, content)
    write_lsp(Path("data/lspet"), images, content, count=25)
    write_label_studio_json(Path("data/label_studio"), images, content)


def write_weights() -> None:
    """Published weights, and the checkpoints of the runs that pages start."""
    names = pytest.importorskip("posenet.checkpoints.published.names")
    config = load_config("config/demo.toml", TINY_NETWORK)
    torch.manual_seed(0)
    weights = PoseNet.from_config(config).state_dict()
    Path("checkpoints").mkdir()
    torch.save({"weights": names.rename_to_published(weights)}, "checkpoints/PoseNet_52_epoch.pth")
    for run in ("simplepose_384", "simplepose_512"):
        Path("checkpoints", run).mkdir()
        torch.save({"model": weights, "config": config_to_dict(config)}, f"checkpoints/{run}/best.pth")


@pytest.fixture
def project(project_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder as the working directory, and a camera and a window that need no hardware."""
    shutil.copytree(project_template, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("posenet.settings.reading.EXPERIMENTS_FOLDER", tmp_path / "config")
    open_video = cv2.VideoCapture
    FakeCapture.install(monkeypatch, count=100).release(100)
    is_file = {True: open_video, False: FakeCapture}
    monkeypatch.setattr(cv2, "VideoCapture", lambda source: is_file[Path(str(source)).is_file()](source))
    monkeypatch.setattr("posenet.inference.predict.require_display", lambda: None)
    for name in ("namedWindow", "destroyAllWindows", "imshow"):
        monkeypatch.setattr(cv2, name, lambda *_: None)
    monkeypatch.setattr(cv2, "getWindowProperty", lambda *_: 1)
    monkeypatch.setattr(cv2, "waitKey", lambda _: ord("q"))
    monkeypatch.setitem(sys.modules, "wandb", MagicMock())
    return tmp_path
