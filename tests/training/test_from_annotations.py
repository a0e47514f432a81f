"""From annotations to a trained network in one call: the forms of annotations, interruptions, the long way, errors."""

import contextlib
import json
import logging
import os
import pickle
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import posenet
from posenet.annotations.adjustments import MAX_LINE
from posenet.cli.main import run_tool
from posenet.data.store import Store
from posenet.data.store_list import count_background
from posenet.devices.signals import STOPPED_STATUS
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.files import write_atomically
from posenet.inference.evaluation import Evaluation
from posenet.skeleton import COCO, load_skeleton
from posenet.training import from_annotations
from posenet.training.from_annotations import MAX_STORED_SIDE, PreparedData, choose_experiment, name_of_run
from posenet.training.step import TrainStep
from posenet.training.train import TrainingResult
from tests.helpers.chairs import NAMES, write_chairs
from tests.helpers.other_formats import read_document, write_label_studio_json, write_yolo_pose
from tests.helpers.process_groups import need_processes
from tests.helpers.process_runs import find_differences
from tests.helpers.tiny_training import TINY, weights

SETTINGS = (*TINY, "inference.height=64", "train.device=cpu")
PAIRS = {tuple(NAMES[index : index + 2]) for index in range(0, len(NAMES), 2)}
RUN = Path("checkpoints/chairs")
CHAIRS = "coco/chairs.json"
NO_YAML = "PyYAML is not installed: pip install 'simplepose[yolo]'"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with chairs.json and photos, an export of Label Studio and a YOLO-pose set, all of the same images."""
    root = tmp_path_factory.mktemp("drawn")
    images, annotations = write_chairs(root, "photos", 8, 1)
    content = read_document(annotations)
    (root / "coco").mkdir()
    (root / "labels").mkdir()
    write_yolo_pose(root / "chairs", images, content, kpt_names={"0": NAMES})
    write_label_studio_json(root / "labels", images, content)
    (root / "labels" / "project-1.json").rename(root / "labels" / "chairs.json")
    shutil.move(annotations, root / "coco" / "chairs.json")
    shutil.move(images, root / "coco" / "photos")
    return root


@pytest.fixture(autouse=True)
def _folder(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work beside a copy of the drawn data."""
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def train(source: str = CHAIRS, *overrides: str, **options: Any) -> TrainingResult:
    return posenet.train(source, [*SETTINGS, *overrides], **{"progress": False} | options)


def prepare(source: str | Path = CHAIRS, *overrides: str, **options: Any) -> PreparedData:
    return from_annotations.prepare(source, [*SETTINGS, *overrides], **options)


@contextlib.contextmanager
def changed_chairs() -> Iterator[dict[str, Any]]:
    """The annotations of the chairs, which are written again at the end of the context."""
    content = read_document(Path(CHAIRS))
    yield content
    Path(CHAIRS).write_text(json.dumps(content))


def stored_names(files: Path = RUN / "data") -> dict[str, set[str]]:
    """The names of the images of each split."""
    return {split: {image["file_name"] for image in content_of(files, split)["images"]} for split in ("train", "val")}


def refused(call: Callable[[], object], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert re.search(message, str(error.value)), error.value
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "source, options",
    [
        (CHAIRS, {"images": "coco/photos"}),
        ("chairs", {}),
        pytest.param("labels/chairs.json", {}, marks=pytest.mark.slow),
    ],
)
def test_annotations_become_a_network_and_steps_are_said(
    source: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    if source == "chairs":
        pytest.importorskip("yaml", reason=NO_YAML)
    caplog.set_level(logging.INFO, "posenet")
    result = train(source, **options)
    assert result.finished and result.folder == RUN
    files = result.folder / "data"
    skeleton = load_skeleton(files / "skeleton.toml")
    assert set(skeleton.keypoints) == set(NAMES) and set(skeleton.left_right) == PAIRS
    images = stored_names()
    assert images["val"] and not images["val"] & images["train"]
    assert images["val"] | images["train"] == {f"{number}.jpg" for number in range(1, 9)}
    said = [record.message for record in caplog.records if record.name == from_annotations.__name__]
    assert all(len(text) <= MAX_LINE for text in said if "evaluate" not in text)
    built = ["Built train.h5: 7 images, 14 ", "Built val.h5: 1 image, 2 ", "Experiment tiny, for a CPU"]
    assert all(text.startswith(beginning) for text, beginning in zip(said[-7:], built))
    assert said[-4].startswith("AP ")
    assert said[-1].startswith(f"Next: posenet predict IMAGES --checkpoint {RUN}/best.pth")
    assert (RUN / "pictures" / "epoch_0002.jpg").is_file()


def content_of(files: Path, split: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files / f"{split}.json").read_text())
    return content


def test_the_long_way_gives_the_same_weights() -> None:
    train()
    data = RUN / "data"
    skeleton = load_skeleton(data / "skeleton.toml")
    for split in ("train", "val"):
        posenet.build_store("coco/photos", data / f"{split}.json", f"{split}.h5", skeleton=skeleton, progress=False)
    own = ["data.train=train.h5", "data.val=val.h5", f"model.skeleton={data / 'skeleton.toml'}"]
    coco = ["data.val_images=coco/photos", f"data.val_annotations={data / 'val.json'}", "checkpoint.path=long"]
    posenet.train("tiny", [*SETTINGS, *own, *coco], progress=False)
    assert find_differences(weights(Path("long")), weights(RUN)) == []


def test_stores_are_built_again_when_the_data_change() -> None:
    prepare()
    store = RUN / "data" / "train.h5"
    val = content_of(RUN / "data", "val")["images"]
    size = store.stat().st_size
    with changed_chairs() as content:
        content["annotations"] = [entry for entry in content["annotations"] if entry["id"] % 2]
    prepare()
    assert store.stat().st_size != size
    assert content_of(RUN / "data", "val")["images"] == val  # no image changes sides
    # A build that was interrupted is done again, and one of which a file is missing too, also in a run that has begun.
    for names, is_started in ((["checksum.txt", "train.h5"], False), (["val.json"], True)):
        if is_started:
            (RUN / "last.pth").touch()
        for name in names:
            (RUN / "data" / name).unlink()
        prepare()
        assert all((RUN / "data" / name).exists() for name in names)


def test_the_checksum_is_written_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that is killed before it writes the warnings would go on with those of earlier data."""
    names = []

    def write(path: Path, data: bytes) -> None:
        names.append(path.name)
        write_atomically(path, data)

    monkeypatch.setattr(from_annotations, "write_atomically", write)
    prepare()
    assert names[-2:] == ["warnings.txt", "checksum.txt"]


def test_images_without_anybody_to_train_on_are_not_chosen_for_validation() -> None:
    prepare()
    [first] = content_of(RUN / "data", "val")["images"]
    content = read_document(Path(CHAIRS))
    few = [9, 9, 2] * 2 + [0, 0, 0] * (len(NAMES) - 2)
    for number, change in enumerate([{"keypoints": few, "num_keypoints": 2}, {"area": 63}, {"iscrowd": 1}]):
        changed = [entry | (change if entry["image_id"] == first["id"] else {}) for entry in content["annotations"]]
        Path(CHAIRS).write_text(json.dumps(content | {"annotations": changed}))
        data = prepare(CHAIRS, f"checkpoint.path=other{number}")
        assert first["file_name"] not in stored_names(data.folder / "data")["val"]


def test_training_images_are_not_validated_on() -> None:
    refused(lambda: train(val=CHAIRS, images="coco/photos"), DataError, "share 8 images .*data.allow_overlap=true")


def stored_joints(files: Path) -> tuple[np.ndarray, int]:
    """The joints of all people, split by split, and the width of an image."""
    joints = []
    for split in ("train", "val"):
        with Store(files / f"{split}.h5") as store:
            records = [store.read_record(row) for row in range(store.num_images)]
        joints += [record.joints for record in records]
    return np.concatenate(joints), records[0].width


def test_the_frame_of_images_with_an_exif_orientation_is_that_of_the_setting() -> None:
    pil = pytest.importorskip("PIL.Image")
    exif = pil.Exif()
    exif[0x0112] = 6  # a quarter turn
    for path in Path("coco/photos").iterdir():
        with pil.open(path) as image:
            image.save(path, exif=exif)
    prepare()
    displayed, _ = stored_joints(RUN / "data")
    prepare(CHAIRS, "data.exif_frame=stored")
    turned, width = stored_joints(RUN / "data")
    is_labelled = displayed[..., 2] > 0
    np.testing.assert_allclose(turned[is_labelled][:, 1], displayed[is_labelled][:, 0], atol=1e-3)
    np.testing.assert_allclose(turned[is_labelled][:, 0], width - 1 - displayed[is_labelled][:, 1], atol=1e-3)


def test_categories_with_the_same_keypoints_in_another_order_are_trained_together() -> None:
    prepare(CHAIRS, "checkpoint.path=one")
    with changed_chairs() as content:
        content["categories"].append({"id": 9, "name": "armchair", "keypoints": NAMES[::-1], "skeleton": []})
        for entry in content["annotations"][::3]:
            entry |= {"category_id": 9, "keypoints": np.reshape(entry["keypoints"], (-1, 3))[::-1].ravel().tolist()}
    prepare()
    one, two = (stored_joints(files)[0] for files in (Path("one/data"), RUN / "data"))
    assert len(two) == len(content["annotations"])
    np.testing.assert_allclose(two, one, atol=1e-3)


def test_a_corrected_skeleton_is_kept() -> None:
    prepare()
    file = RUN / "data" / "skeleton.toml"
    file.write_text(file.read_text().replace("0.05", "0.07"))
    data = prepare()
    assert f'model.skeleton="{file}"' in data.overrides
    with Store(RUN / "data" / "train.h5") as store:
        assert set(load_skeleton(file).sigmas) == set(store.skeleton.sigmas) == {0.07}
    mine = file.rename("caf\u00e9.toml")
    data = prepare(CHAIRS, r'model.skeleton="caf\u00e9.toml"')  # as TOML writes it
    assert 'model.skeleton="caf\u00e9.toml"' in data.overrides
    mine = mine.rename("mine.toml")
    assert not file.exists() and mine.exists()
    Path("experiment.toml").write_text('[model]\nskeleton = "mine.toml"\n')
    remedy = "not that of the experiment; .* model.skeleton=FILE.toml"
    refused(lambda: prepare(experiment="experiment.toml"), ConfigError, remedy)


def test_validation_data_can_be_given() -> None:
    images, annotations = write_chairs(Path("second").absolute(), "more", 2, 2)
    for options in ({"val_images": images, "images": "coco/photos"}, {}):  # without a folder, their images are found
        data = prepare(val=annotations, **options)
        assert (data.images, data.annotations) == (images, RUN / "data" / "val.json")
        assert len(stored_names()["val"]) == 2


def write_yaml(**changes: Any) -> Path:
    """Change the data.yaml of the YOLO-pose set."""
    yaml = pytest.importorskip("yaml", reason=NO_YAML)
    file = Path("chairs/data.yaml")
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | changes))
    return file


def test_a_yolo_data_set_may_have_images_for_validation() -> None:
    file = write_yaml(path=str(Path("chairs").absolute()), val="images/val")
    for kind, suffix in (("images", "jpg"), ("labels", "txt")):
        Path("chairs", kind, "val").mkdir()
        for number in (3, 7):
            Path(f"chairs/{kind}/train/{number}.{suffix}").rename(f"chairs/{kind}/val/{number}.{suffix}")
    data = prepare(file)
    others = {f"{number}.jpg" for number in (1, 2, 4, 5, 6, 8)}
    assert stored_names(data.folder / "data") == {"val": {"3.jpg", "7.jpg"}, "train": others}
    assert (data.images, data.annotations) == (Path("chairs/images/val").absolute(), data.folder / "data/val.json")


def test_a_val_that_is_not_there_is_ignored_and_named(caplog: pytest.LogCaptureFixture) -> None:
    prepare(write_yaml(train="images/train", val="images/valid"))
    names = stored_names()
    assert names["val"] and not names["train"] & names["val"]
    assert any("images/valid" in record.message for record in caplog.records if record.levelname == "WARNING")
    refused(lambda: prepare(write_yaml(train="images/none", val=None)), DataError, "images/none")


def test_cocos_keypoints_have_cocos_skeleton() -> None:
    with changed_chairs() as content:
        content["categories"][0] |= {"id": 3, "keypoints": list(COCO.file_names), "skeleton": []}
        for entry in content["annotations"]:
            entry["category_id"] = 3
            entry["keypoints"] += [0, 0, 0] * (17 - len(NAMES))
    prepare()
    skeleton = load_skeleton(RUN / "data" / "skeleton.toml")
    assert skeleton == COCO and skeleton.category_id == 3


def test_what_cannot_be_prepared_is_refused_in_one_line() -> None:
    Path("other").mkdir()
    Path("results.json").write_text(json.dumps([{"image_id": 1, "keypoints": [1, 2, 2], "score": 0.5}]))
    Path("text.json").write_text("3")
    Path("cvat.zip").touch()
    Path("empty.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    for source, message in {
        "missing.json": "missing.json does not exist; give a data.yaml",
        "coco/photos/1.jpg": "1.jpg is not a file of annotations; give a data.yaml",
        "other": "other has no file of annotations; give the file itself",
        "empty.json": "no folder in . has the images of empty.json, or several",
        "results.json": "results.json has results, not annotations",
        "text.json": "text.json has no annotations",
        "cvat.zip": "cvat.zip is not a file of annotations; give .* unpacked",
    }.items():
        refused(lambda: prepare(source), DataError, message)
    with changed_chairs() as content:
        one = [entry for entry in content["annotations"] if entry["image_id"] == 1]
        Path("coco/one.json").write_text(json.dumps(content | {"annotations": one}))
        message = "train.json has keypoints in 1 image, too few"
        refused(lambda: prepare("coco/one.json"), DataError, message)
        shutil.copytree("coco/photos", "coco/again")
        refused(prepare, DataError, "several have them, such as 1.jpg; name it")
        for entry in content["annotations"]:
            entry["keypoints"] = entry["keypoints"][:5]
    refused(lambda: prepare(images="coco/photos"), DataError, "keypoint-values.*posenet annotations lint ")
    assert not list(RUN.rglob("*.h5"))


def test_wrong_folders_and_weights_are_refused_before_anything_is_built() -> None:
    for options, message in [
        ({"images": "fotos"}, "fotos"),
        ({"images": "coco/photos", "val_images": CHAIRS}, "chairs.json"),
        ({"val": "coco/photos"}, "photos has no file of annotations"),
    ]:
        refused(lambda: prepare(**options), DataError, message)
    Path("yolo.pt").write_bytes(pickle.dumps({"model": Path}, protocol=2))
    for name, message in {
        "no.pth": "no.pth is not a",
        "yolo.pt": "yolo.pt is not a checkpoint of plain tensors|yolo.pt is damaged",
    }.items():
        refused(lambda: train(CHAIRS, f"train.weights={name}", "checkpoint.path=own"), CheckpointError, message)
    pytest.importorskip("yaml", reason=NO_YAML)
    refused(lambda: prepare("chairs", images="chairs/images"), DataError, "leave out --images DIR")
    assert not list(Path("checkpoints").rglob("*.h5"))


def test_one_unusable_image_is_left_out_and_neither_more_nor_all_of_a_split(caplog: pytest.LogCaptureFixture) -> None:
    images, annotations = write_chairs(Path("second").absolute(), "more", 1, 2)
    (images / "1.jpg").unlink()
    options = {"val": annotations, "val_images": images, "images": "coco/photos"}
    refused(lambda: prepare(**options), DataError, str(images))
    Path("coco/photos/3.jpg").unlink()
    caplog.set_level(logging.INFO, "posenet")
    prepare()
    assert any("unreadable-file" in message and "3.jpg (missing)" in message for message in caplog.messages)
    assert "3.jpg" not in set().union(*stored_names().values())
    for number in (4, 5, 6, 7):
        Path(f"coco/photos/{number}.jpg").unlink()
    refused(prepare, DataError, "unreadable-file")


def test_a_damaged_validation_image_is_left_out_of_the_ap_too(caplog: pytest.LogCaptureFixture) -> None:
    images, annotations = write_chairs(Path("second").absolute(), "more", 3, 2)
    file = images / "2.jpg"
    file.write_bytes(file.read_bytes()[:1000])
    options = {"images": "coco/photos", "val": annotations, "val_images": images}
    assert train(CHAIRS, **options, max_steps=1).steps == 1
    assert any("unreadable-file" in text and "2.jpg" in text for text in caplog.messages)
    caplog.clear()
    caplog.set_level(logging.INFO, "posenet")
    assert train(CHAIRS, **options).finished  # goes on without the image
    [ap] = [text for text in caplog.messages if "on 2 images that it was not trained on" in text]
    beside = caplog.messages[caplog.messages.index(ap) + 2]
    assert "unreadable-file" in beside and "2.jpg" in beside, "the warnings are repeated"
    assert stored_names()["val"] == {"1.jpg", "3.jpg"}


def test_large_images_are_stored_smaller_those_of_nobody_too_and_those_of_small_objects_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with changed_chairs() as content:
        for entry in content["annotations"]:
            entry["area"] = 63 if entry["image_id"] == content["images"][0]["id"] else 1024
        size = {"width": 2 * MAX_STORED_SIDE, "height": MAX_STORED_SIDE}
        content["images"].append({"id": 99, "file_name": "large.jpg", **size})
        cv2.imwrite("coco/photos/large.jpg", np.zeros((size["height"], size["width"], 3), np.uint8))
    caplog.set_level(logging.INFO, "posenet")
    data = prepare()
    with Store(data.folder / "data" / "train.h5") as store:
        assert count_background(store) == 1
    assert any("train.h5" in text and "1 made smaller" in text for text in caplog.messages)
    assert [line for line in data.warnings if "2 smaller than 8 x 8 pixels" in line]
    assert [line for line in data.warnings if "1 image without a main chair" in line]
    with changed_chairs() as content:
        for entry in content["annotations"]:
            entry["area"] = 63
    refused(prepare, DataError, r"no chair in .*: \d+ smaller than 8 x 8 pixels")  # and no background


def test_of_several_kinds_of_objects_the_most_frequent_one_is_trained(caplog: pytest.LogCaptureFixture) -> None:
    with changed_chairs() as content:
        stool = {"id": 63, "name": "stool", "keypoints": ["seat", "foot"], "skeleton": [[1, 2]]}
        content["categories"].insert(0, stool)
        box = content["annotations"][0]["bbox"]
        seat = [box[0] + 1, box[1] + 1, 2, box[0] + 9, box[1] + 9, 2]
        content["annotations"].append(content["annotations"][0] | {"id": 999, "category_id": 63, "keypoints": seat})
    prepare()
    assert load_skeleton(RUN / "data" / "skeleton.toml").num_keypoints == len(NAMES)
    assert any("stool" in record.message for record in caplog.records if record.levelname == "WARNING")
    assert run_tool("annotations", ["skeleton", CHAIRS, "--category", "stool", "--output", "s.toml"]) == 0
    shutil.copy(CHAIRS, "coco/stools.json")
    refused(lambda: prepare("coco/stools.json", "model.skeleton=s.toml"), DataError, "in 1 image, too few")


def test_prepare_stops_before_the_training_and_shows_the_labels(capsys: pytest.CaptureFixture[str]) -> None:
    words = [CHAIRS, "--images", "coco/photos", "--set", *SETTINGS]
    assert run_tool("train", [*words, "--prepare"]) == 0
    shown = capsys.readouterr().err
    assert not list(RUN.glob("*.pth")) and cv2.imread(str(RUN / "labels.jpg")) is not None
    assert "labels.jpg" in shown and "skeleton.toml" in shown
    assert "Next: the same without --prepare" in shown
    assert run_tool("train", words) == 0 and (RUN / "best.pth").exists()
    assert "The data have not changed" in capsys.readouterr().err
    assert run_tool("train", ["--prepare"]) == 2
    result = train(CHAIRS, "checkpoint.path=python", images="coco/photos", prepare=True)
    assert (result.folder, result.finished, result.steps) == (Path("python"), False, 0)
    assert not list(Path("python").glob("*.pth")) and Path("python/labels.jpg").is_file()
    refused(lambda: posenet.train("tiny", SETTINGS, prepare=True), ConfigError, "prepare")


def test_an_experiment_without_ap_evaluates_and_draws_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "posenet")
    result = train(experiment="demo")
    assert list(result.best) == ["AP"]
    assert (RUN / "pictures" / "epoch_0002.jpg").is_file()
    assert "Experiment demo" in caplog.messages
    Path("own.toml").write_text("[train]\nevaluate_every = 2\n")  # which stays as it is
    for experiment, pair in {"own.toml": "checkpoint.path=own", "demo": " train.evaluate_every = 0"}.items():
        data = prepare(CHAIRS, pair, experiment=experiment)
        assert not any(pair.startswith("train.evaluate_every") for pair in data.overrides)


def test_the_experiment_is_one_for_the_device_and_its_height_for_prediction_follows_that_of_the_input() -> None:
    sizes = ["train.input_size=[128, 256]"]
    data = from_annotations.prepare(CHAIRS, sizes)
    for has_accelerator, name in ((False, "tiny"), (True, "small")):
        experiment, pairs = choose_experiment(data, sizes, None, has_accelerator)
        default = posenet.load_config(name)
        assert (experiment, default.inference.height) == (name, default.train.size[0])
        assert pairs == [*data.overrides, *sizes, "inference.height=128"]


def test_the_best_network_is_evaluated_at_the_end_on_the_device_of_the_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "posenet")
    evaluated = []

    def evaluate(checkpoint: Path, *_: object, device: str, **__: object) -> Evaluation:
        evaluated.append((checkpoint, device))
        return Evaluation({"AP": 0.321}, 1)

    monkeypatch.setattr(from_annotations, "evaluate", evaluate)
    same = {"val": CHAIRS, "images": "coco/photos"}
    best = train(CHAIRS, "data.allow_overlap=true", **same).folder / "best.pth"
    train(CHAIRS, "data.allow_overlap=true", **same)  # the run is finished already
    assert evaluated == 2 * [(best, "cpu")]
    assert any(message == "AP 0.321 on 1 image that it may have been trained on" for message in caplog.messages)
    assert caplog.messages[-1].startswith("Next: posenet predict")


def test_weights_bring_their_network_with_them(caplog: pytest.LogCaptureFixture) -> None:
    pretrained = train().folder / "last.pth"
    with changed_chairs() as content:
        content["categories"][0] |= {"keypoints": NAMES[:4], "skeleton": [[1, 2], [1, 3], [2, 4]]}
        for entry in content["annotations"]:
            entry["keypoints"] = entry["keypoints"][:12]
            entry["num_keypoints"] = sum(value > 0 for value in entry["keypoints"][2::3])
    Path(CHAIRS).rename("coco/seats.json")
    caplog.set_level(logging.INFO, "posenet")
    others = [pair for pair in SETTINGS if not pair.startswith("model.")]
    result = posenet.train("coco/seats.json", [*others, f"train.weights={pretrained}"], progress=False)
    assert result.finished and result.folder == Path("checkpoints/seats")
    text = "\n".join(caplog.messages)
    assert f"Experiment tiny, for a CPU, with the network of {pretrained}; --config" in text
    assert re.search(rf"Fine-tuning. {pretrained}: loaded \d+ tensors\n", text)


def test_a_run_continues_with_the_data_it_began_with_alone(capsys: pytest.CaptureFixture[str]) -> None:
    RUN.mkdir(parents=True)
    (RUN / "last.pth").touch()
    refused(lambda: train(), CheckpointError, "chairs already contains a run, which has begun with other data")
    (RUN / "last.pth").unlink()
    train(max_steps=1)
    here = f"checkpoint.path={RUN}"
    for same in (CHAIRS, "coco", "coco/../coco/chairs.json"):
        assert prepare(same, here).is_started
    stored = (RUN / "data" / "train.h5").read_bytes()
    refused(lambda: train("labels", here), CheckpointError, "has begun with other data than labels has now")
    os.utime("coco/photos/1.jpg", (0, 0))
    with pytest.raises(CheckpointError) as error:
        train()
    command = str(error.value).rpartition(": ")[2]
    assert command == f"posenet train --resume {RUN}/last.pth"
    assert run_tool("train", shlex.split(command)[2:]) == 0, capsys.readouterr().err
    assert (RUN / "run.status").read_text().strip() == "finished"
    assert (RUN / "data" / "train.h5").read_bytes() == stored


def test_arguments_that_do_not_belong_together_are_refused() -> None:
    refused(lambda: train(resume="a.pth"), ConfigError, "in its folder; leave out --resume")
    refused(lambda: posenet.train("tiny", images="photos"), ConfigError, "belong to annotations")
    refused(lambda: train(CHAIRS, "data.train=other.h5"), ConfigError, "data.train names other data than")
    table = json.dumps(["a", "b"])
    inline = f"model.skeleton={{keypoints={table}, parts=[{table}]}}"
    refused(lambda: train(CHAIRS, inline), ConfigError, "model.skeleton is the name of a TOML file, or coco")


def test_the_tool_goes_on_after_a_signal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    train_step = TrainStep.__call__

    def train_step_and_signal(self: TrainStep, batches: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return train_step(self, batches)

    words = [CHAIRS, "--images", "coco/photos", "--set", *SETTINGS]
    with monkeypatch.context() as patch:
        patch.setattr(TrainStep, "__call__", train_step_and_signal)
        assert run_tool("train", words) == STOPPED_STATUS == 75
    assert (RUN / "run.status").read_text().strip() == "stopped"
    assert "last.pth; --resume continues" in capsys.readouterr().err
    need_processes()
    assert run_tool("train-parallel", words) == 0
    assert (RUN / "run.status").read_text().strip() == "finished"
    assert "\nAP " in capsys.readouterr().err


def test_a_run_is_called_after_the_first_name_that_tells_sets_apart(tmp_path: Path) -> None:
    folder = tmp_path / "birds.v2"
    folder.mkdir()
    for source in (folder, folder / "train.json", folder / "annotations" / "person_keypoints_a.json"):
        assert name_of_run(source) == "birds.v2"
    assert name_of_run(folder / "owls.json") == "owls"
    assert name_of_run(Path("/data/train.json")) == "run"
