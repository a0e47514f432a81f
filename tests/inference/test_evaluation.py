"""``posenet.evaluate``: predicting a split, the results file, the metrics, and the tool."""

import contextlib
import dataclasses
import functools
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO as CocoApi
from pycocotools.cocoeval import COCOeval

import posenet
from posenet.annotations.people import read_split
from posenet.cli.main import run_tool
from posenet.devices.ranks import Ranks
from posenet.errors import ConfigError, DataError
from posenet.inference import evaluation
from posenet.inference.evaluation import METRICS, compute_coco_metrics
from posenet.inference.predictor import Predictor
from posenet.settings import Config
from posenet.skeleton import COCO
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.networks import write_checkpoint
from tests.helpers.process_groups import errors_in_processes, need_processes
from tests.helpers.spot_networks import LinearSpotNetwork, spot_image, write_spot_split


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny.pth", "inference.height=64")


@pytest.fixture
def split(tiny_coco: Path) -> tuple[Path, Path]:
    """The images and the annotations of a small split."""
    return tiny_coco / "val2017", tiny_coco / "annotations" / "person_keypoints_val2017.json"


def test_the_function_writes_the_results_of_the_tool(
    checkpoint: Path, split: tuple[Path, Path], tmp_path: Path
) -> None:
    images, annotations = map(str, split)
    flags = ["--checkpoint", str(checkpoint), "--images", images, "--annotations", annotations, "--flip"]
    assert run_tool("evaluate", [*flags, "--output", str(tmp_path / "tool.json")]) == 0
    evaluation = posenet.evaluate(checkpoint, *split, output=tmp_path / "function.json", flip=True)
    results = (tmp_path / "function.json").read_text()
    assert results == (tmp_path / "tool.json").read_text()
    assert evaluation is not None
    assert evaluation.images == 3
    with contextlib.redirect_stdout(io.StringIO()):
        truth = CocoApi(annotations)
        theirs = COCOeval(truth, truth.loadRes(str(tmp_path / "function.json")), "keypoints")
        theirs.evaluate()
        theirs.accumulate()
        theirs.summarize()
    assert list(evaluation.metrics.values()) == pytest.approx(theirs.stats, abs=1e-12)
    posenet.evaluate(checkpoint, *split, output=tmp_path / "plain.json")
    assert (tmp_path / "plain.json").read_text() != results and len(json.loads(results)) > 3


def test_a_predictor_may_be_passed(checkpoint: Path, split: tuple[Path, Path]) -> None:
    predictor = posenet.Predictor(checkpoint, device="cpu", amp="off")
    assert posenet.evaluate(predictor, *split) == posenet.evaluate(checkpoint, *split)
    with pytest.raises(ConfigError, match="config, flip"):
        posenet.evaluate(predictor, *split, config=Config(), flip=True)


def test_what_no_process_can_read_is_reported_by_one(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    evaluate = functools.partial(evaluation.evaluate, checkpoint, tmp_path, tmp_path / "a.json", progress=False)
    errors = errors_in_processes(2, tmp_path / "errors", lambda ranks: evaluate(ranks=ranks))
    assert "a.json" in errors[0] and errors[1].startswith("OtherRankError")


def test_only_the_first_process_checks_the_output(
    checkpoint: Path, split: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone writes: in the folder of another machine, there may be anything."""
    need_processes()
    monkeypatch.setattr(evaluation, "predict_annotated_images", lambda predictor, images: (_ for _ in ()))
    (tmp_path / "results.json").write_text("")
    ranks = Ranks()
    ranks.rank, ranks.world_size = 1, 2
    found = evaluation.evaluate(checkpoint, *split, output=tmp_path / "results.json", ranks=ranks, progress=False)
    assert found is None and not (tmp_path / "results.json").read_text()


def test_no_batch_has_images_of_two_processes(
    checkpoint: Path, split: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the people found do not depend on the number of processes."""
    shares: list[Any] = []

    def note_share(predictor: Predictor, images: Any) -> Iterator[Any]:
        shares.append(images)
        yield from ()

    monkeypatch.setattr(evaluation, "predict_annotated_images", note_share)
    for rank in range(2):
        ranks = Ranks()
        ranks.rank, ranks.world_size = rank, 2
        evaluation.evaluate(Predictor(checkpoint, backend="torch", batch_size=2), *split, ranks=ranks, progress=False)
    blocks = [{source.block for _, source in share} for share in shares]
    assert all(blocks) and not blocks[0] & blocks[1]


@pytest.mark.parametrize(
    "name, changes",
    [
        ("missing.pth", {"checkpoint": "missing.pth"}),
        ("images are missing", {"images": "."}),
        ("is a folder", {"output": "."}),
        ("inference.height", {"height": 1}),
        ("amp 'fp8'", {"amp": "fp8"}),
        ("exif_frame 'shown'", {"exif_frame": "shown"}),
        ("min_score", {"min_score": 0.5}),
        ("image ids", {"image_ids": []}),
    ],
)
def test_errors_are_exceptions(
    checkpoint: Path, split: tuple[Path, Path], tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    inputs: dict[str, Any] = {"checkpoint": checkpoint, "images": split[0], "annotations": split[1]}
    with contextlib.chdir(tmp_path), pytest.raises(posenet.PosenetError, match=name):
        posenet.evaluate(**inputs | changes)


def test_existing_outputs_are_kept_and_inputs_always(
    checkpoint: Path, split: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("posenet.cli.diagnose")
    images, annotations = split
    argv = ["--checkpoint", str(checkpoint), "--images", str(images), "--annotations", str(annotations)]
    words = ["--output", str(tmp_path / "r.json"), "--report", str(tmp_path / "report")]
    outputs = [tmp_path / "r.json", tmp_path / "report" / "report.html"]
    for number, path in enumerate(outputs):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        assert run_tool("evaluate", [*argv, *words[2 * number : 2 * number + 2]]) == 2
        assert f"{path} exists" in capsys.readouterr().err and path.read_text() == "mine"
    with pytest.raises(DataError, match="would replace an input"):
        posenet.evaluate(checkpoint, *split, output=next(images.glob("*.jpg")), overwrite=True)
    assert run_tool("evaluate", [*argv, *words, "--overwrite"]) == 0
    assert all(path.read_bytes() != b"mine" for path in outputs)


def test_the_tool_writes_a_results_file_and_says_what_it_has_done(
    spot_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    annotations = write_spot_split(tmp_path / "split")
    argv = ["--checkpoint", str(spot_file), "--images", str(tmp_path / "split"), "--annotations", str(annotations)]
    path = tmp_path / "out" / "results.json"
    assert run_tool("evaluate", [*argv, "--output", str(path)]) == 0
    same = posenet.evaluate(spot_file, tmp_path / "split", annotations)
    assert same is not None
    assert capsys.readouterr().out == f"wrote {path}\n8 images\n{same.table()}\n"
    results = json.loads(path.read_text())
    assert all(set(result) == {"image_id", "category_id", "keypoints", "score"} for result in results)
    assert [result["image_id"] for result in results] == sorted(result["image_id"] for result in results)
    assert run_tool("evaluate", [*argv, "--output", "-", "--image_ids", "2", "4"]) == 0
    captured = capsys.readouterr()
    assert {result["image_id"] for result in json.loads(captured.out)} == {2, 4} and "2 images" in captured.err
    assert run_tool("evaluate", [*argv, "--image-ids", "none.txt"]) == 2
    assert "cannot read image ids from none.txt" in capsys.readouterr().err


def test_without_annotations_there_are_predictions_only(
    spot_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = json.loads(write_spot_split(tmp_path).read_text())
    categories = [{"id": 3, "name": "car"}, {"id": 7, "name": "person"}]
    info = tmp_path / "image_info.json"
    info.write_text(json.dumps({"images": content["images"], "categories": categories}))
    argv = ["--checkpoint", spot_file, "--images", tmp_path, "--annotations", info, "--output", tmp_path / "r.json"]
    assert run_tool("evaluate", list(map(str, argv))) == 0
    assert "contains no annotations, so there are no metrics" in capsys.readouterr().out
    assert {result["category_id"] for result in json.loads((tmp_path / "r.json").read_text())} == {7}


@pytest.mark.parametrize("setting", ["stored", "displayed"])
def test_people_are_in_the_displayed_frame(
    tmp_path: Path, setting: str, spot_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An image turned by 180 degrees: its size does not say in which frame it is annotated."""
    image = spot_image(192, 192, (40, 60), (90, 120), 6)
    stored = np.rot90(image, 2).copy()
    (tmp_path / "1.jpg").write_bytes(with_orientation(encode(stored), 3))
    content = document([1], [person(1, 1)])
    content["images"][0] |= {"file_name": "1.jpg", "height": 192, "width": 192}
    annotations = write_annotations(tmp_path / "a.json", content)
    argv = ["--checkpoint", str(spot_file), "--images", str(tmp_path), "--annotations", str(annotations)]
    argv += ["--output", str(tmp_path / "r.json"), "--set", f"data.exif_frame={setting}"]
    with caplog.at_level("INFO"):
        assert run_tool("evaluate", argv) == 0
    assert "exif-by-setting" in caplog.text and ("exif-turned" in caplog.text) == (setting == "stored")
    x, y, score = json.loads((tmp_path / "r.json").read_text())[0]["keypoints"][:3]
    assert score > 0
    assert (x, y) == pytest.approx((40, 60), abs=1.5)


def write_image_of_one(folder: Path, size: tuple[int, int]) -> Path:
    """An image of a nose and a neck, 256 x 192 pixels, that is annotated with (height, width) ``size``."""
    (folder / "1.png").write_bytes(encode(spot_image(192, 256, (40, 60), (90, 120), 6), ".png"))
    content = document([1], [person(1, 1)])
    content["images"][0] |= {"file_name": "1.png", "height": size[0], "width": size[1]}
    return write_annotations(folder / "a.json", content)


def test_people_in_resized_images_are_scaled_to_the_annotations(
    spot_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = {}
    for factor in (1, 2, 0.5):
        height, width = round(192 * factor), round(256 * factor)
        annotations = write_image_of_one(tmp_path, (height, width))
        caplog.clear()
        evaluation = posenet.evaluate(spot_file, tmp_path, annotations, progress=False)
        assert evaluation is not None
        found[factor] = np.reshape(evaluation.results[0]["keypoints"], (-1, 3))[0, :2]
        message = f"1 image of another size than annotated, such as 256 x 192 instead of {width} x {height}"
        assert (message in caplog.text) == (factor != 1)
    np.testing.assert_allclose(found[1], (40, 60), atol=1)
    np.testing.assert_allclose(found[2], (found[1] + 0.5) * 2 - 0.5, atol=0.01)
    np.testing.assert_allclose(found[0.5], (found[1] + 0.5) / 2 - 0.5, atol=0.01)


@pytest.mark.parametrize("size", [(256, 192), (192, 250)])
def test_images_of_other_proportions_than_annotated_are_refused(
    spot_file: Path, tmp_path: Path, size: tuple[int, int]
) -> None:
    annotations = write_image_of_one(tmp_path, size)
    with pytest.raises(DataError, match=f"is 256 x 192 pixels, annotated as {size[1]} x {size[0]}"):
        posenet.evaluate(spot_file, tmp_path, annotations, progress=False)


def test_an_image_that_is_named_twice_counts_once(
    spot_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    annotations = write_spot_split(tmp_path)
    once = posenet.evaluate(spot_file, tmp_path, annotations, image_ids=[3, 1], progress=False)
    twice = posenet.evaluate(spot_file, tmp_path, annotations, image_ids=np.array([3, 1, 1, 3]), progress=False)
    assert once is not None and twice is not None
    assert twice.images == 2 and twice == once and list(twice.results) == list(once.results)
    assert capfd.readouterr() == ("", ""), "there is no bar"


def test_people_with_low_scores_count_although_the_predictor_leaves_them_out(spot_file: Path, tmp_path: Path) -> None:
    annotations = write_image_of_one(tmp_path, (192, 256))
    predictor = posenet.Predictor(spot_file, min_score=0.9)
    evaluation = posenet.evaluate(predictor, tmp_path, annotations, progress=False)
    assert evaluation is not None and evaluation.results[0]["score"] < 0.9 == predictor.min_score
    points = np.reshape(evaluation.results[0]["keypoints"], (-1, 3))
    assert points[:, :2].all() and not points[:, 2].all(), "keypoints that were not found are estimated"


def test_the_sigmas_are_those_of_the_skeleton(tmp_path: Path) -> None:
    annotations = write_spot_split(tmp_path)
    values = []
    for factor in (1, 0.1):
        skeleton = dataclasses.replace(COCO, sigmas=tuple(factor * sigma for sigma in COCO.sigmas))
        predictor = posenet.Predictor(LinearSpotNetwork(), height=128, skeleton=skeleton)
        evaluation = posenet.evaluate(predictor, tmp_path, annotations, progress=False)
        assert evaluation is not None
        values.append(evaluation.metrics["AP"])
    assert values[0] > values[1]


def test_the_truth_scores_one_and_missed_people_count(tmp_path: Path) -> None:
    """The metrics are of the whole split, not of the images that have results."""
    people = [person(number, number, (5, 5, 45, 75)) for number in range(1, 7)]
    content = document(range(1, 8), [*people, person(900, 1, labelled=0, iscrowd=1)])
    split = read_split(write_annotations(tmp_path / "a.json", content))
    truth = [{key: one[key] for key in ("image_id", "category_id", "keypoints")} | {"score": 0.9} for one in people]
    whole = compute_coco_metrics(truth, split)
    assert whole.images == 7 and tuple(whole.metrics) == METRICS and whole.metrics["APL"] == -1
    names, values = whole.table().splitlines()
    assert names.split() == list(METRICS)
    assert values.split() == ["1.000"] * 4 + ["-"] + ["1.000"] * 4 + ["-"]
    assert compute_coco_metrics(truth[:2], split).metrics["AR"] == pytest.approx(2 / 6)
    nobody = [truth[0] | {"keypoints": [600, 600, 1] * 17}]
    assert compute_coco_metrics(nobody, split).table().splitlines()[1].split()[:2] == ["0.000"] * 2


def test_missing_and_damaged_images_are_named(spot_file: Path, tmp_path: Path) -> None:
    annotations = write_spot_split(tmp_path)
    (tmp_path / "3.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"3\.png"):
        posenet.evaluate(spot_file, tmp_path, annotations, progress=False)
    (tmp_path / "3.png").unlink()
    with pytest.raises(DataError, match=r"1 of 8 images are missing.*3\.png"):
        posenet.evaluate(spot_file, tmp_path, annotations, progress=False)


def test_categories_with_the_same_keypoints_are_evaluated_as_one(tmp_path: Path) -> None:
    """A dog that is found as a cat is found, because they share the keypoints."""
    dog = person(1, 1, category_id=9)
    content = document([1], [dog])
    [category] = content["categories"]
    content["categories"] = [category | {"id": 7, "name": "cat"}, category | {"id": 9, "name": "dog"}]
    path = write_annotations(tmp_path / "animals.json", content)
    found = [{"image_id": 1, "category_id": 7, "keypoints": dog["keypoints"], "score": 1.0}]
    assert compute_coco_metrics(found, read_split(path)).metrics["AP"] == pytest.approx(1)
