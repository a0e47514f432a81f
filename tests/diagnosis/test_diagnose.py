"""Known errors in perfect results are found, each with its number; and the numbers are those of ``pycocotools``."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posenet
from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.diagnosis.keypoint_errors import CORRECTIONS, KEYPOINT_KINDS, LOCALISATION, UNLABELLED
from posenet.diagnosis.matching import OKS_THRESHOLDS, Results, read_results
from posenet.diagnosis.report import write_report
from posenet.errors import DataError
from posenet.inference.evaluation import METRICS
from posenet.skeleton import COCO
from posenet.skeleton.oks import keypoint_similarity
from posenet.skeleton.skeleton_file import skeleton_to_toml
from tests.helpers.coco_results import (
    InjectedErrors,
    classify,
    coco_ap,
    make_document,
    people_document,
    people_of,
    perfect_results,
    plain_coco,
    random_results,
)
from tests.helpers.drawn_data import person as box_person
from tests.helpers.rooms import needs_drafting

NUM_IMAGES = 50
"""Images of COCO. pycocotools, with which the results are compared, takes most of the time."""


@pytest.fixture(scope="session")
def drawn() -> dict[str, Any]:
    return people_document(40)


@pytest.fixture(scope="session", params=["drawn", "coco"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A COCO data set of people who are made up, or of people of COCO."""
    if request.param == "drawn":
        content: dict[str, Any] = request.getfixturevalue("drawn")
        return content
    sample: Path = request.getfixturevalue("coco_sample")
    content = json.loads((sample / "annotations" / "person_keypoints_val2017_oracle150.json").read_text())
    content["images"] = content["images"][:NUM_IMAGES]
    ids = {image["id"] for image in content["images"]}
    content["annotations"] = [entry for entry in content["annotations"] if entry["image_id"] in ids]
    return content


@pytest.fixture(scope="session")
def annotation_file(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("annotations") / "people.json"
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def drawn_file(drawn: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "people.json"
    path.write_text(json.dumps(drawn))
    return path


@pytest.fixture(scope="session")
def results(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Random results for ``document``."""
    return random_results(document, np.random.default_rng(5))


@pytest.fixture(scope="session")
def diagnosis(results: list[dict[str, Any]], annotation_file: Path) -> Diagnosis:
    return diagnose(annotation_file, results, progress=False)


EXACT = 1e-9


def ap_by_threshold(evaluation: Any) -> np.ndarray:
    """(10,) what pycocotools computes for people of any size."""
    return np.asarray(evaluation.eval["precision"][:, :, 0, 0, 0].mean(axis=1))


BY_THRESHOLD = ("background_by_threshold", "missed_by_threshold")
COUNTS = {"jitter": 150, "inversion": 25, "swap": 6, "miss": 30}


def run(path: Path, results: list[dict[str, Any]]) -> Diagnosis:
    return diagnose(path, results, progress=False)


def labelled_keypoints(document: dict[str, Any]) -> int:
    return sum(person["num_keypoints"] for person in people_of(document))


def check_counts(diagnosis: Diagnosis, injected: InjectedErrors) -> None:
    """The diagnosis has exactly the injected errors, in total and of every keypoint, and COCO's metrics."""
    assert {kind: diagnosis.counts[kind] for kind in LOCALISATION} == {k: injected.count(k) for k in LOCALISATION}
    for k, name in enumerate(COCO.file_names):
        for kind in LOCALISATION:
            assert diagnosis.keypoints[name][kind] == injected.keypoints[kind, k], (name, kind)
    assert diagnosis.background_by_threshold[0] == injected.background
    assert diagnosis.missed_by_threshold[0] == injected.missed
    evaluation = plain_coco(injected.document, injected.results)
    assert diagnosis.metrics == pytest.approx(dict(zip(METRICS, evaluation.stats.tolist())), abs=EXACT)


def test_perfect_results_have_no_errors(document: dict[str, Any], annotation_file: Path) -> None:
    diagnosis = run(annotation_file, perfect_results(document))
    assert diagnosis.counts == {"good": labelled_keypoints(document), **dict.fromkeys(LOCALISATION, 0)}
    assert diagnosis.background_by_threshold == diagnosis.missed_by_threshold == [0] * 10
    assert [*diagnosis.corrected.values(), *diagnosis.alone.values()] == pytest.approx([1.0] * 16, abs=EXACT)
    assert diagnosis.num_people == diagnosis.num_results == len(people_of(document))


def test_mixed_errors_are_all_found(document: dict[str, Any], annotation_file: Path) -> None:
    rng = np.random.default_rng(0)
    injected = InjectedErrors.start(document)
    for kind in rng.permutation(LOCALISATION).tolist():
        injected.add_keypoint_errors(kind, COUNTS[kind] // 2, rng)
    injected.remove_people(6, rng)
    injected.add_background(12, rng, score=0.85)
    diagnosis = run(annotation_file, injected.results)
    check_counts(diagnosis, injected)
    stages = [diagnosis.ap, *diagnosis.corrected.values()]
    assert list(diagnosis.corrected) == list(diagnosis.alone) == list(CORRECTIONS)
    assert stages == sorted(stages) and stages[-1] == 1
    assert min(diagnosis.alone.values()) >= diagnosis.ap and diagnosis.alone["missed"] > diagnosis.ap
    assert diagnosis.ap + sum(diagnosis.costs.values()) == pytest.approx(1)


def test_every_keypoint_is_what_the_definition_says(document: dict[str, Any], annotation_file: Path) -> None:
    """Random results, one keypoint at a time; and COCO's metrics of them."""
    results = random_results(document, np.random.default_rng(8))
    diagnosis = run(annotation_file, results)
    matched = diagnosis.matched
    for row, person in enumerate(matched.person.tolist()):
        if person < 0:
            assert (matched.kinds[row] == UNLABELLED).all()
            continue
        same_image = np.flatnonzero(matched.truth.people & (matched.truth.image == matched.truth.image[person]))
        entries = {
            other: {"keypoints": matched.truth.keypoints[other].ravel(), "area": matched.truth.areas[other]}
            for other in same_image.tolist()
        }
        owner = entries.pop(person)
        for k, kind in enumerate(matched.kinds[row].tolist()):
            if owner["keypoints"][3 * k + 2] == 0:
                assert kind == UNLABELLED
            else:
                x, y = matched.results.keypoints[row, k, :2].tolist()
                assert KEYPOINT_KINDS[kind] == classify((x, y), k, owner, entries.values())
    assert min(diagnosis.counts.values()) > 0
    expected = plain_coco(document, results)
    assert diagnosis.metrics == pytest.approx(dict(zip(METRICS, expected.stats.tolist())), abs=EXACT)
    np.testing.assert_allclose(diagnosis.stages["ap"], ap_by_threshold(expected), rtol=0, atol=EXACT)
    assert list(OKS_THRESHOLDS) == expected.params.iouThrs.tolist(), "to the last bit: its 0.9 is a little less"


def test_of_two_results_for_a_person_the_better_one_has_the_true_oks(drawn: dict[str, Any], drawn_file: Path) -> None:
    results = perfect_results(drawn)
    worse = copy.deepcopy(results[0]) | {"score": 1.0}
    worse["keypoints"][::3] = [x + 1 for x in worse["keypoints"][::3]]
    far = copy.deepcopy(results[0]) | {"score": 1.0}
    far["keypoints"][::3] = [x + 3 * people_of(drawn)[0]["area"] ** 0.5 for x in far["keypoints"][::3]]
    assert run(drawn_file, [far]).matched.true_oks().tolist() == [0]
    diagnosis = run(drawn_file, [worse, *results])
    index = [image.id for image in diagnosis.images].index(worse["image_id"])
    first, *others = diagnosis.matched.true_oks()[diagnosis.matched.results.image == index]
    assert first == 0 and others == pytest.approx([1.0] * len(others))


def test_results_without_people_miss_everybody(drawn: dict[str, Any], drawn_file: Path) -> None:
    diagnosis = run(drawn_file, [])
    assert diagnosis.ap == 0 and diagnosis.num_results == 0
    assert diagnosis.missed_by_threshold == [len(people_of(drawn))] * 10
    assert diagnosis.background_by_threshold == [0] * 10
    assert diagnosis.costs == diagnosis.alone == {**dict.fromkeys(CORRECTIONS, 0.0), "missed": 1.0}
    [far, *_] = perfect_results(drawn)
    far["keypoints"] = [value + 5000 for value in far["keypoints"]]
    diagnosis = run(drawn_file, [far])
    assert diagnosis.alone["missed"] == 0, "a false positive is left, and nobody to be found"
    assert diagnosis.corrected["background"] == 0 and diagnosis.corrected["missed"] == 1


def test_people_beyond_cocos_limit_are_counted_and_their_images_named(tmp_path: Path) -> None:
    people = [box_person(0, 1, (20 * number, 10, 18, 40)) for number in range(30)]
    document = make_document(people)
    path = tmp_path / "people.json"
    path.write_text(json.dumps(document))
    diagnosis = run(path, perfect_results(document))
    assert (diagnosis.num_results, diagnosis.missed_by_threshold[0]) == (20, 10)
    text = diagnosis.describe_limit()
    assert "20 best" in text and "10 left out; 10 missed people" in text
    assert text.endswith(f"in {document['images'][0]['file_name']}")
    assert text in " ".join(write_report(diagnosis, tmp_path).read_text().replace("&#39;", "'").split())
    assert run(path, []).describe_limit(), "people beyond the limit are named too"
    document["annotations"] = people[20:]
    path.write_text(json.dumps(document))
    assert run(path, perfect_results(document)).describe_limit() == ""


def test_only_chosen_images_are_diagnosed(drawn: dict[str, Any], drawn_file: Path) -> None:
    chosen = {person["image_id"] for person in people_of(drawn)[:3]}
    results = [result for result in perfect_results(drawn) if result["image_id"] in chosen]
    diagnosis = posenet.diagnose(drawn_file, results, image_ids=chosen, progress=False)
    assert {image.id for image in diagnosis.images} == chosen and diagnosis.ap == pytest.approx(1)
    assert len(diagnosis.matched.truth.areas) == sum(entry["image_id"] in chosen for entry in drawn["annotations"])


@needs_drafting
def test_other_skeletons_have_their_own_sigmas_and_sides(drawn: dict[str, Any], tmp_path: Path) -> None:
    """A skeleton of three keypoints, one pair of them left and right."""
    skeleton = posenet.Skeleton(
        keypoints=("top", "L", "R"), parts=(("top", "L"), ("top", "R")), left_right=(("L", "R"),), derived={},
        file_keypoints=("top", "L", "R"), file_names=("top", "left", "right"), sigmas=(0.1, 0.05, 0.05),
    )  # fmt: skip
    document = copy.deepcopy(drawn)
    document["categories"] = [{"id": 1, "name": "chair", "keypoints": ["top", "left", "right"]}]
    for entry in document["annotations"]:
        entry["keypoints"] = [*entry["keypoints"][:3], *entry["keypoints"][15:21]]
        entry["num_keypoints"] = sum(value > 0 for value in entry["keypoints"][2::3])
    path = tmp_path / "chairs.json"
    path.write_text(json.dumps(document))
    results = perfect_results(document)
    people = people_of(document)
    inverted = [row for row, person in enumerate(people) if min(person["keypoints"][2::3]) > 0][:5]
    for row in inverted:
        top, left, right = (results[row]["keypoints"][start : start + 3] for start in (0, 3, 6))
        results[row]["keypoints"] = [*top, *right, *left]
    diagnosis = diagnose(path, results, skeleton=skeleton, progress=False)
    assert diagnosis.counts["inversion"] == diagnosis.keypoints["L"]["inversion"] * 2 == 10
    expected = coco_ap(plain_coco(document, results, sigmas=skeleton.sigmas))
    assert diagnosis.ap == pytest.approx(expected, abs=EXACT)
    file = tmp_path / "chair.toml"
    file.write_text(skeleton_to_toml(skeleton))
    assert diagnose(path, results, skeleton=file, progress=False).ap == diagnosis.ap
    drafted = diagnose(path, results, progress=False).matched.skeleton  # by the names and with equal OKS constants
    assert drafted.file_names == skeleton.file_names and len(set(drafted.sigmas)) == 1


def test_the_sizes_hold_everybody_once(diagnosis: Diagnosis) -> None:
    assert sum(part["people"] for part in diagnosis.sizes) == diagnosis.num_people
    assert sum(part["missed"] for part in diagnosis.sizes) == diagnosis.missed_by_threshold[0]
    for kind in KEYPOINT_KINDS:
        assert sum(part["counts"][kind] for part in diagnosis.sizes) == diagnosis.counts[kind]


def test_sizes_are_cocos(tmp_path: Path) -> None:
    areas = (1000, 1024, 96**2, 96**2 + 1)
    people = [box_person(0, 1, (20 + number, 20, 50, 60), 8, area=area) for number, area in enumerate(areas)]
    path = tmp_path / "people.json"
    path.write_text(json.dumps(make_document(people)))
    diagnosis = diagnose(path, [], progress=False)
    assert [(part["name"], part["people"]) for part in diagnosis.sizes] == [("small", 1), ("medium", 2), ("large", 1)]


def test_the_json_file_has_the_numbers_of_a_diagnosis(diagnosis: Diagnosis, tmp_path: Path) -> None:
    write_report(diagnosis, tmp_path, provenance={"Flip": "yes"})
    content = json.loads((tmp_path / "diagnosis.json").read_text())
    for name in ("metrics", "counts", "keypoints", "corrected", "alone", "name", "sizes", *BY_THRESHOLD):
        assert content.pop(name) == getattr(diagnosis, name)
    by_threshold = content.pop("AP_by_threshold")
    assert [*by_threshold] == ["ap", *CORRECTIONS]
    assert by_threshold["ap"] == diagnosis.stages["ap"].tolist() and by_threshold["inexact"] == [1] * 10
    assert content == {
        "images": len(diagnosis.images),
        "people": diagnosis.num_people,
        "results": diagnosis.num_results,
        "AP": diagnosis.ap,
        "oks_thresholds": [0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95],
        "left_out": diagnosis.matched.results.num_left_out,
        "provenance": {"Flip": "yes"},
    }


MOVED_TO = {"jitter": 0.85, "miss": 0.5}
"""Similarity of corrected keypoints; inversions and swaps keep theirs."""


def to_file(diagnosis: Diagnosis, results: Results) -> list[dict[str, Any]]:
    """Results as the content of a results file."""
    return [
        {"image_id": diagnosis.images[image].id, "category_id": 1, "keypoints": keypoints.ravel().tolist()}
        | {"score": score}
        for image, keypoints, score in zip(results.image, results.keypoints, results.scores.tolist())
    ]


@pytest.mark.parametrize("stage", [*LOCALISATION, "score"])
def test_the_corrected_precision_is_that_of_pycocotools(
    stage: str, diagnosis: Diagnosis, document: dict[str, Any]
) -> None:
    """After each correction and all before it, and after it alone."""
    in_turn = CORRECTIONS[: CORRECTIONS.index(stage) + 1]
    for corrections in (in_turn, [stage]):
        content = to_file(diagnosis, diagnosis.matched.correct(corrections).results)
        expected = ap_by_threshold(plain_coco(document, content))
        np.testing.assert_allclose(diagnosis.matched.correct(corrections).evaluate().precision(), expected, atol=EXACT)
        if corrections is in_turn:
            np.testing.assert_allclose(diagnosis.stages[stage], expected, rtol=0, atol=EXACT)
        else:
            assert diagnosis.alone[stage] == pytest.approx(expected.mean(), abs=EXACT)


@pytest.mark.parametrize("corrections", [(), CORRECTIONS[:5]])
def test_background_and_missed_people_are_removed_at_each_threshold(
    corrections: tuple[str, ...], diagnosis: Diagnosis, document: dict[str, Any]
) -> None:
    matched = diagnosis.matched.correct(corrections)
    content = to_file(diagnosis, matched.results)
    outcome = matched.evaluate()
    alone = {
        "background": replace(outcome, counted=outcome.correct).precision(),
        "missed": outcome.precision(outcome.missed[0]),
        "inexact": outcome.precision(~outcome.missed[0]),
    }
    people = {person["id"] for person in people_of(document)}
    missed_at_50: set[int] = set()
    for level, threshold in ((0, 0.5), (8, 0.9)):
        evaluated = plain_coco(document, content, [threshold]).evalImgs[: len(diagnosis.images)]
        images = [image for image in evaluated if image]
        found = {id for image in images for id, match in zip(image["dtIds"], image["dtMatches"][0]) if match}
        missed = people - {id for image in images for id, match in zip(image["gtIds"], image["gtMatches"][0]) if match}
        missed_at_50 = missed_at_50 or missed
        kept = [result for number, result in enumerate(content, 1) if number in found]
        assert outcome.background[level].sum() == len(content) - len(kept)
        assert outcome.missed[level].sum() == len(missed)
        remaining = kept if corrections else content
        for stage, results, removed in (
            ("background", kept, set()),
            ("missed", remaining, missed & missed_at_50),
            ("inexact", remaining, missed if corrections else missed - missed_at_50),
        ):
            plain = plain_coco(document, results, [threshold], people=lambda entry: entry["id"] not in removed)
            aps = diagnosis.stages if corrections else alone
            assert aps[stage][level] == pytest.approx(coco_ap(plain), abs=EXACT)
            assert corrections or aps[stage].mean() == diagnosis.alone[stage]
    assert (diagnosis.stages["inexact"] == 1).all()


@pytest.mark.parametrize("kind", LOCALISATION)
def test_corrected_keypoints_have_the_similarity_of_their_kind(kind: str, diagnosis: Diagnosis) -> None:
    before = diagnosis.matched
    after = before.correct([kind])
    is_kind = before.kinds == KEYPOINT_KINDS.index(kind)
    gaps = [one.results.keypoints[..., :2] - before.truth.keypoints[before.person, :, :2] for one in (before, after)]
    areas = before.truth.areas[before.person, None]
    similarity = keypoint_similarity((gaps[1] ** 2).sum(axis=2), areas, np.array(COCO.sigmas))[is_kind]
    expected = np.full(len(similarity), MOVED_TO[kind]) if kind in MOVED_TO else before.similarity[is_kind]
    assert len(similarity) > 3
    np.testing.assert_allclose(similarity, expected, rtol=1e-7)
    assert (similarity >= np.minimum(expected, 1 - 1e-12)).all()  # never a little below a threshold
    old, new = gaps[0][is_kind], gaps[1][is_kind]
    lengths = np.linalg.norm(old, axis=1) * np.linalg.norm(new, axis=1)
    np.testing.assert_allclose((old * new).sum(axis=1), lengths, atol=1e-6 * lengths.max())  # the same direction
    assert np.array_equal(after.results.keypoints[~is_kind], before.results.keypoints[~is_kind])
    assert np.array_equal(after.results.scores, before.results.scores)


IDS = {10: 0, 20: 1, 30: 2}
"""The index of every image by its id."""


def read_file(path: Path, content: str) -> Results:
    path.write_text(content)
    return Results.of(read_results(path, IDS, {1}, 17), IDS, 17)


@pytest.fixture
def entries() -> list[dict[str, Any]]:
    keypoints = [float(value) for value in range(51)]
    return [{"image_id": number, "category_id": 1, "keypoints": keypoints, "score": 0.5} for number in (30, 10, 20)]


CHANGES = [
    *(({"image_id": value}, f"result 2 has an image_id {value}") for value in (99999, 1.5)),
    ({"category_id": 18}, "category_id 18 that the annotations do not list"),
    *(({key: None}, "result 2 has other content") for key in ("image_id", "category_id", "score", "keypoints")),
    *(
        ({"keypoints": keypoints}, "result 2 .* 51 of them as keypoints")
        for keypoints in ([1.0] * 50, ["1"] * 51, [True] * 51, [float("nan")] * 51, [-(10**400)] * 51)
    ),
    *(({"score": score}, "result 2 has other content") for score in ("0.9", True, float("nan"), [0.5])),
]
FILES = {
    "": "cannot read results .*; give a COCO results file",
    "{": "cannot read results",
    "[" * 100000: "cannot read results",
    "[1, 2]": "result 1 has other content",
    '{"annotations": [], "images": []}': "is not a list of results",
    "null": "is not a list of results",
}


def test_faulty_files_are_refused_in_one_line(entries: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    contents = [(json.dumps([entries[0], entries[1] | change, entries[2]]), message) for change, message in CHANGES]
    for content, message in [*contents, *FILES.items()]:
        with pytest.raises(DataError, match=message) as caught:
            read_file(path, content)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value) and len(str(caught.value)) < 400
    with pytest.raises(DataError, match="cannot read results"):
        read_results(tmp_path / "missing.json", IDS, {1}, 17)


def test_whole_numbers_and_further_fields_are_accepted(entries: list[dict[str, Any]], tmp_path: Path) -> None:
    entries[0] |= {"keypoints": [1, 2, 0] * 17, "score": -3, "bbox": "anything", "segmentation": None, "area": []}
    entries[1] |= {"image_id": 10.0, "category_id": 1.0}
    found = read_file(tmp_path / "results.json", json.dumps(entries))
    assert found.image.tolist() == [0, 1, 2] and found.scores.tolist() == [0.5, 0.5, -3]
    assert np.array_equal(found.keypoints[2], [[1, 2, 0]] * 17)
    assert read_results(tuple(entries), IDS, {1}, 17) == entries
    assert read_file(tmp_path / "results.json", "[]").keypoints.shape == (0, 17, 3)
