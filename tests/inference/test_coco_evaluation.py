import contextlib
import io
import json
import sys

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO as CocoApi

from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.images.image_files import read_image, write_image
from posenet.inference.coco_evaluation import METRICS, Evaluation, evaluate, predict_split, read_split, score, to_result
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from posenet.settings import InferenceConfig
from posenet.skeleton import COCO
from tests.helpers.networks import random_network
from tests.helpers.spot_networks import LinearSpotNetwork, spot_people_image
from tests.images.test_image_files import with_orientation

SIZES = [(120, 160), (160, 120), (120, 161), (90, 160), (160, 90)]


def image_of(number):
    """An image whose first pixel says which one it is."""
    height, width = SIZES[number % len(SIZES)]
    return np.full((height, width, 3), 10 * number, np.uint8)


def annotation(rng, identity, image_id, **fields):
    keypoints = np.concatenate([rng.integers(5, 80, (17, 2)), rng.integers(0, 3, (17, 1))], axis=1)
    keypoints[0, 2] = 2
    keypoints[keypoints[:, 2] == 0] = 0
    return {
        "id": identity,
        "image_id": image_id,
        "category_id": 1,
        "keypoints": keypoints.ravel().tolist(),
        "num_keypoints": int((keypoints[:, 2] > 0).sum()),
        "area": 5000.0,
        "bbox": [5, 5, 75, 75],
        "iscrowd": 0,
    } | fields


@pytest.fixture
def split(tmp_path):
    """(image folder, annotation file): six images, one without people, one with a crowd."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "val"
    images, people = [], []
    for number in range(6):
        write_image(folder / f"{number:03d}.png", image_of(number))
        height, width = image_of(number).shape[:2]
        images.append({"id": 100 + number, "file_name": f"{number:03d}.png", "height": height, "width": width})
        people += [annotation(rng, len(people) + i, 100 + number) for i in range(number % 3)]
    people.append(annotation(rng, 900, 101, iscrowd=1, num_keypoints=0, keypoints=[0] * 51))
    path = tmp_path / "person_keypoints.json"
    path.write_text(
        json.dumps(
            {
                "images": images,
                "annotations": people,
                "categories": [{"id": 1, "name": "person", "keypoints": list(COCO.file_names)}],
            }
        )
    )
    return folder, path


def oracle(path, seen=None):
    """A predictor that knows the annotations and tells images by their first pixel."""
    people = json.loads(path.read_text())["annotations"]

    def predict(images):
        answer = []
        for image in images:
            image_id = 100 + int(image[0, 0, 0]) // 10
            if seen is not None:
                seen.append(image_id)
            own = [p for p in people if p["image_id"] == image_id and not p["iscrowd"]]
            joints = COCO.from_file(np.array([p["keypoints"] for p in own], np.float32).reshape(-1, 17, 3))
            answer.append([Person(keypoints, 0.9) for keypoints in joints])
        return answer

    return predict


def test_the_truth_scores_one_and_every_image_is_seen_once(split):
    seen = []
    result = evaluate(oracle(split[1], seen), *split, progress=False)
    assert sorted(seen) == [100, 101, 102, 103, 104, 105]
    assert result.images == 6 and tuple(result.metrics) == METRICS
    assert result.ap == pytest.approx(1)
    assert result.metrics["APL"] == -1
    assert all(value == pytest.approx(1) for name, value in result.metrics.items() if not name.endswith("L"))
    assert result.table().splitlines()[0].split() == list(METRICS)
    assert result.precision.shape == (10, 101) and result.precision.min() == pytest.approx(1)
    assert result.table().splitlines()[1].split() == ["1.000"] * 4 + ["-"] + ["1.000"] * 4 + ["-"]


def test_missed_images_count(split):
    """The whole split is scored, not the images that happen to have results."""
    everything = read_split(split[1])
    results = predict_split(oracle(split[1]), split[0], everything.images, everything.category, progress=False)
    some = [result for result in results if result["image_id"] == results[0]["image_id"]]
    assert score(some, everything).metrics["AR"] == pytest.approx(len(some) / len(results))
    assert score([], everything).ap == 0


def test_shares_can_be_predicted_apart(split):
    whole = read_split(split[1])
    shares = [
        predict_split(oracle(split[1]), split[0], whole.images[rank::2], whole.category, batch_size=2, progress=False)
        for rank in range(2)
    ]
    assert score(shares[0] + shares[1], whole).ap == pytest.approx(1)


def test_pictures_of_one_shape_come_together(split):
    whole = read_split(split[1])
    ratios = []

    def predict(images):
        ratios.extend(image.shape[1] / image.shape[0] for image in images)
        return [[] for _ in images]

    assert predict_split(predict, split[0], whole.images, whole.category, batch_size=2, progress=False) == []
    assert ratios == sorted(ratios)


def test_results_file_is_what_coco_reads(split, tmp_path):
    path = tmp_path / "out" / "results.json"
    evaluate(oracle(split[1]), *split, results_path=path, progress=False)
    with contextlib.redirect_stdout(io.StringIO()):
        loaded = CocoApi(str(split[1])).loadRes(str(path))
    results = json.loads(path.read_text())
    assert len(loaded.anns) == len(results) == 6
    assert all(
        set(r) == {"image_id", "category_id", "keypoints", "score"} and len(r["keypoints"]) == 51 for r in results
    )
    ids = [r["image_id"] for r in results]
    assert ids == sorted(ids)


def test_image_ids_restrict(split):
    seen = []
    result = evaluate(oracle(split[1], seen), *split, image_ids=[102, 104], progress=False)
    assert sorted(seen) == [102, 104] and result.images == 2 and result.ap == pytest.approx(1)
    with pytest.raises(DataError, match="999"):
        evaluate(oracle(split[1]), *split, image_ids=[999], progress=False)


def test_without_annotations_there_are_predictions_only(split, tmp_path):
    dataset = json.loads(split[1].read_text())
    info = tmp_path / "image_info.json"
    info.write_text(
        json.dumps({"images": dataset["images"], "categories": [{"id": 3, "name": "car"}, {"id": 7, "name": "person"}]})
    )
    results = tmp_path / "results.json"
    assert evaluate(oracle(split[1]), split[0], info, results_path=results, progress=False) is None
    assert {r["category_id"] for r in json.loads(results.read_text())} == {7}
    assert not read_split(info).annotated


def test_pictures_are_not_turned(split):
    """Annotations are made on the stored pixels; EXIF orientation would turn them away from these."""
    path = split[0] / "000.png"
    path.write_bytes(with_orientation(cv2.imencode(".jpg", image_of(0))[1].tobytes(), 6))
    shapes = []
    evaluate(lambda images: [shapes.append(i.shape) or [] for i in images], *split, image_ids=[100], progress=False)
    assert shapes == [image_of(0).shape]


def test_missing_and_damaged_pictures_are_named(split):
    (split[0] / "003.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="003.png"):
        evaluate(oracle(split[1]), *split, progress=False)
    (split[0] / "003.png").unlink()
    with pytest.raises(DataError, match="1 of 6 images are missing.*003.png"):
        evaluate(oracle(split[1]), *split, progress=False)


ONE_IMAGE = '{"images": [{"id": 1, "file_name": "a", "width": 1, "height": 1}], "annotations": [%s]}'
PERSON = '{"category_id": 1, "image_id": 1, "area": 1, "bbox": []%s}'


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "keypoint file"),
        ("[]", "keypoint file"),
        ('{"images": []}', "no images"),
        ('{"images": [{"id": 1}]}', "file_name"),
        (ONE_IMAGE % (PERSON % ""), "without keypoints"),
        (ONE_IMAGE % '{"category_id": 1, "keypoints": []}', "image_id"),
        (ONE_IMAGE % (PERSON % ', "keypoints": [1, 2, 2]'), "1 keypoints, not 17"),
    ],
)
def test_unusable_annotations_are_named(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        read_split(path)
    assert "broken.json" in str(caught.value)


def test_missing_keypoints_are_guessed_for_the_comparison_only():
    keypoints = np.zeros((18, 3), np.float32)
    keypoints[COCO.index("nose")] = (10, 20, 0.5)
    keypoints[COCO.index("Lank")] = (30, 60, 0.5)
    plain, guessed = (np.reshape(to_result(Person(keypoints, 0.1), 1, guess=g)["keypoints"], (17, 3)) for g in (0, 1))
    lost = plain[:, 2] == 0
    assert lost.sum() == 15 and not plain[lost].any()
    np.testing.assert_array_equal(guessed[lost], [(20, 40, 0)] * 15)
    np.testing.assert_array_equal(guessed[~lost], plain[~lost])


def test_tool(split, tmp_path, capsys, monkeypatch):
    import posenet.cli.evaluate as tool

    class Stub:
        stream, skeleton = staticmethod(oracle(split[1])), COCO

    monkeypatch.setattr(tool, "make_predictor", lambda args: Stub)
    argv = ["--weights", "x.pth", "--images", str(split[0]), "--annotations", str(split[1])]
    assert run_tool("evaluate", [*argv, "--output", str(tmp_path / "r.json"), "--image_ids", "102", "104"]) == 0
    out = capsys.readouterr().out
    assert "2 images" in out and "APM" in out and "1.000" in out
    assert (tmp_path / "r.json").exists()
    assert run_tool("evaluate", [*argv, "--plots", str(tmp_path / "plots")]) == 0
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"keypoints.png", "precision_recall.png"}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run_tool("evaluate", [*argv, "--plots", str(tmp_path / "plots")]) == 2
    assert "pip install 'posenet[plot]'" in capsys.readouterr().err
    assert run_tool("evaluate", [*argv, "--output", str(split[1])]) == 2
    assert "would replace an input" in capsys.readouterr().err
    assert read_split(split[1]).annotated
    assert run_tool("evaluate", [*argv, "--output", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_every_keypoint_is_told_by_itself(split):
    """Of the truth, one person's left wrists are off and another person is missing."""
    _, path = split
    part = read_split(path)
    labelled = [person for person in part.people if person["num_keypoints"]]
    results = [
        {
            "image_id": person["image_id"],
            "category_id": 1,
            "score": 1.0,
            "keypoints": list(map(float, person["keypoints"])),
        }
        for person in labelled
    ]
    perfect = score(results, part).keypoints
    assert list(perfect) == list(COCO.file_keypoints)
    assert all(value == pytest.approx(1) for value in perfect.values())
    wrist = COCO.file_keypoints.index("Lwri")
    for result in results:
        result["keypoints"][3 * wrist] += 1000
    worse = score(results, part).keypoints
    assert worse["Lwri"] < 0.01 and worse["Rwri"] == pytest.approx(1)
    assert score(results[1:], part).keypoints["nose"] == pytest.approx(1 - 1 / len(labelled))
    assert set(score([], part).keypoints.values()) == {0.0}


def test_real_annotations_score_one(coco_sample):
    path = coco_sample / "annotations" / "person_keypoints_val2017.json"
    split = read_split(path)
    results = [
        to_result(Person(COCO.from_file(np.reshape(p["keypoints"], (1, 17, 3)))[0], 1.0), p["image_id"])
        for p in split.people
        if p["num_keypoints"]
    ]
    assert score(results, split).metrics == pytest.approx(dict.fromkeys(METRICS, 1.0), abs=1e-6)


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda d: d["categories"][0].update(keypoints=["paw", "tail"]), "other keypoints"),
        (lambda d: d["images"][0].update(file_name="../secret.png"), "not a path inside"),
        (lambda d: d["images"][0].update(file_name="/etc/secret.png"), "not a path inside"),
    ],
)
def test_foreign_keypoints_and_paths_outside_the_folder_are_refused(split, change, words):
    document = json.loads(split[1].read_text())
    change(document)
    split[1].write_text(json.dumps(document))
    with pytest.raises(DataError, match=words):
        read_split(split[1])


def crowd_split(folder):
    """Eight images of several shapes with people that ``LinearSpotNetwork`` finds, and their annotations."""
    images, people = [], []
    for number, (height, width) in enumerate(
        [(200, 300), (200, 300), (160, 330), (200, 300), (256, 256), (130, 190), (200, 290), (256, 256)]
    ):
        write_image(folder / f"{number}.png", spot_people_image(height, width, 2, number))
        images.append({"id": number + 1, "file_name": f"{number}.png", "height": height, "width": width})
        found = Predictor(LinearSpotNetwork(), InferenceConfig(height=height))(read_image(folder / f"{number}.png"))
        for person in found:
            joints = person.to_coco().round(1)
            joints[:, :2] += (number % 3) * 1.5  # so that AP is neither 0 nor 1
            joints[:, 2] = 2 * (joints[:, 2] > 0)
            people.append(
                {
                    "id": len(people) + 1,
                    "image_id": number + 1,
                    "category_id": 1,
                    "area": 3000.0,
                    "bbox": [0, 0, 50, 60],
                    "iscrowd": 0,
                    "keypoints": joints.astype(float).ravel().tolist(),
                }
            )
    path = folder / "truth.json"
    path.write_text(
        json.dumps(
            {
                "images": images,
                "annotations": people,
                "categories": [{"id": 1, "name": "person", "keypoints": list(COCO.file_names)}],
            }
        )
    )
    return path


@pytest.mark.parametrize("network", [LinearSpotNetwork(), random_network(1)], ids=["spots", "posenet"])
def test_batches_streams_and_shares_give_one_result(network, tmp_path):
    """Sums differ in their last digits between batch sizes, so the places may by a thousandth of a pixel."""
    split = read_split(crowd_split(tmp_path))

    def results(batch_size, handed, world=1):
        predictor = Predictor(FusedNetwork(network), InferenceConfig(height=128, batch_size=batch_size))
        predict = predictor.stream if handed is None else predictor.batch
        shares = [
            predict_split(predict, tmp_path, split.images[rank::world], 1, batch_size=handed, progress=False)
            for rank in range(world)
        ]
        return sorted((result for share in shares for result in share), key=lambda r: (r["image_id"], -r["score"]))

    expected = results(1, 1)
    metrics = score(expected, split).metrics
    assert {result["image_id"] for result in expected} == set(range(1, 9))
    for batch_size, handed, world in ((4, None, 1), (3, 16, 1), (8, None, 3), (2, 5, 2)):
        others = results(batch_size, handed, world)
        assert [other["image_id"] for other in others] == [one["image_id"] for one in expected]
        np.testing.assert_allclose([other["score"] for other in others], [one["score"] for one in expected], atol=1e-4)
        assert score(others, split).metrics == pytest.approx(metrics, abs=1e-6)
    if isinstance(network, LinearSpotNetwork):
        assert 0.1 < metrics["AP"] < 0.9


def test_a_stream_sees_every_picture_once_and_ends_with_what_goes_wrong(split):
    seen = []
    assert evaluate(oracle(split[1], seen), *split, batch_size=None, progress=False).ap == pytest.approx(1)
    assert sorted(seen) == [100, 101, 102, 103, 104, 105]
    with pytest.raises(ValueError):
        evaluate(lambda images: [[] for _ in images][1:], *split, batch_size=None, progress=False)
    (split[0] / "003.png").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="003.png"):
        evaluate(oracle(split[1]), *split, batch_size=None, progress=False)


def test_categories_with_the_same_keypoints_count_as_one(tmp_path):
    """Cats and dogs of one skeleton: a dog that is found as a cat is found."""
    names = list(COCO.file_names)
    animals = [
        {"id": 5, "name": "bird", "keypoints": ["beak"]},
        {"id": 7, "name": "cat", "keypoints": names},
        {"id": 9, "name": "dog", "keypoints": names},
    ]
    keypoints = np.c_[np.random.default_rng(0).uniform(0, 90, (17, 2)), np.full(17, 2)].ravel().tolist()
    people = [
        {
            "id": i,
            "image_id": 1,
            "category_id": category,
            "keypoints": keypoints,
            "area": 5000.0,
            "bbox": [0, 0, 90, 90],
        }
        for i, category in enumerate((9, 5), 1)
    ]
    path = tmp_path / "animals.json"
    path.write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "1.jpg", "width": 99, "height": 99}],
                "annotations": people,
                "categories": animals,
            }
        )
    )
    split = read_split(path)
    assert split.category == 7 and [person["category_id"] for person in split.people] == [7]
    found = [{"image_id": 1, "category_id": 7, "keypoints": keypoints, "score": 1.0}]
    assert score(found, split).ap == pytest.approx(1)


def test_keypoints_stand_side_by_side_or_below_each_other_where_that_would_be_too_wide():
    short = Evaluation({}, 1, dict.fromkeys(("nose", "Leye"), 0.5)).keypoint_table()
    assert short == "  nose  Leye\n 0.500 0.500"
    names = [f"the left keypoint {number}" for number in range(8)]
    lines = Evaluation({}, 1, {name: -1 if name == names[7] else 0.25 for name in names}).keypoint_table().splitlines()
    assert lines[0] == "  the left keypoint 0  0.250" and len(lines) == 8 and lines[7].endswith("7  -")
