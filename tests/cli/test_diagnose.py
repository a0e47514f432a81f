"""``posenet diagnose`` and ``evaluate --report``: what they write and print, and which input they refuse."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import posenet
from posenet.cli.main import run_tool
from tests.helpers.chairs import write_chairs
from tests.helpers.coco_results import InjectedErrors, people_document, perfect_results
from tests.helpers.networks import write_checkpoint
from tests.helpers.rooms import needs_checks, needs_drafting


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return people_document(8)


@pytest.fixture
def annotations(document: dict[str, Any], tmp_path: Path) -> Path:
    return write(tmp_path / "people.json", document)


@pytest.fixture
def results(document: dict[str, Any], tmp_path: Path) -> Path:
    return write(tmp_path / "results.json", perfect_results(document))


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def run(*words: object) -> int:
    return run_tool("diagnose", [str(word) for word in words])


def test_one_results_file(
    annotations: Path, document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    injected = InjectedErrors.start(document)
    injected.add_keypoint_errors("inversion", 3, np.random.default_rng(0))
    results = write(tmp_path / "one.json", injected.results)
    output = tmp_path / "new" / "report"
    assert run("--annotations", annotations, "--results", results, "--output", output) == 0
    content = json.loads((output / "diagnosis.json").read_text())
    assert content["counts"]["inversion"] == 3 and content["name"] == "one.json"
    assert sorted(path.name for path in output.iterdir()) == ["diagnosis.json", "report.html"]
    facts = content["provenance"]
    stated = {"Results": str(results), "Annotations": str(annotations), "Images": "not shown"}
    assert facts == stated | {"Written": facts["Written"]}
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\d \d\d:\d\d by posenet {posenet.__version__}", facts["Written"])
    page = (output / "report.html").read_text()
    assert all(f"<dt>{name}</dt><dd>{value}</dd>" in page for name, value in facts.items())
    printed = capsys.readouterr().out
    assert f"AP {content['AP']:.3f}; 34 people, 0 missed people at OKS 0.5, 34 results\n" in printed
    gains = np.diff([content["AP"], *content["corrected"].values()])
    assert ", ".join(map("{} {:+.3f}".format, content["corrected"], gains)) in printed


def test_evaluate_writes_the_report_of_its_results(
    tiny_coco: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(tmp_path / "last.pth")  # a tiny network that was not trained
    annotations = tiny_coco / "annotations" / "person_keypoints_val2017.json"
    images = json.loads(annotations.read_text())["images"]
    unlabelled = write(tmp_path / "image_info.json", {"images": images[:1]})
    flags = f"--checkpoint {checkpoint} --images {tiny_coco / 'val2017'} --height 64 --flip --scales 0.5 1"
    for truth, folder in ((annotations, "report"), (unlabelled, "none")):
        words = f"{flags} --image-ids {images[0]['id']} --annotations {truth} --report {tmp_path / folder}"
        assert run_tool("evaluate", words.split()) == 0
    content = json.loads((tmp_path / "report" / "diagnosis.json").read_text())
    assert content["name"] == "last.pth" and content["images"] == 1
    facts = content["provenance"]
    assert list(facts.items())[:6] == [
        ("Checkpoint", str(checkpoint)),
        ("Annotations", str(annotations)),
        ("Height", "64"),
        ("Flip", "yes"),
        ("Scales", "0.5, 1"),
        ("Images", str(tiny_coco / "val2017")),
    ]
    assert "<dt>Flip</dt><dd>yes</dd>" in (tmp_path / "report" / "report.html").read_text()
    out = capsys.readouterr().out
    assert "last.pth: AP" in out and "contains no annotations, so there are no metrics and no report" in out
    assert not (tmp_path / "none" / "report.html").exists()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line with which a run ends, with status 2; only warnings about the annotations may stand before it."""
    assert run(*words) == 2
    *warnings, line = capsys.readouterr().err.splitlines()
    expected = ("keypoints outside their image", "has other keypoints than COCO")
    assert all(any(text in warning for text in expected) for warning in warnings)
    return line


@needs_drafting
@needs_checks
def test_input_that_does_not_fit_is_refused_before_anything_is_written(
    annotations: Path, results: Path, document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report"
    missing = tmp_path / "missing"
    nobody = write(tmp_path / "nobody.json", document | {"annotations": []})
    _, chairs = write_chairs(tmp_path, "chairs", 3, seed=1)
    broken = write(tmp_path / "broken.json", [{"image_id": 1, "category_id": 1, "keypoints": [1], "score": 1}])
    for truth, words, message in (
        (annotations, [missing], "cannot read results"),
        (annotations, [results, "--images", missing], "does not exist"),
        (annotations, [broken], "result 1 has other content"),
        (missing, [results], "cannot read annotations"),
        (nobody, [results], "no people"),
        (chairs, [results], "result 1 has other content"),
        (chairs, [results, "--skeleton", "coco"], "no category has the skeleton's keypoints"),
    ):
        line = refused(capsys, "--annotations", truth, "--output", output, "--results", *words)
        assert message in line
    assert not list(output.iterdir())
    results = results.rename(tmp_path / "diagnosis.json")
    line = refused(capsys, "--annotations", annotations, "--results", results, "--output", tmp_path)
    assert "would replace an input" in line


@needs_drafting
def test_results_of_other_objects_need_no_skeleton(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, chairs = write_chairs(tmp_path, "chairs", 3, seed=1)
    content = json.loads(chairs.read_text())
    content["categories"].insert(0, {"id": 0, "name": "furniture"})  # as Roboflow writes it, without keypoints
    write(chairs, content)
    results = [
        {"image_id": entry["image_id"], "category_id": 62, "keypoints": entry["keypoints"], "score": 0.9}
        for entry in content["annotations"]
    ]
    output = tmp_path / "report"
    words = ("--annotations", chairs, "--results", write(tmp_path / "r.json", results), "--output", output)
    assert run(*words, "--images", images) == 0
    captured = capsys.readouterr()
    assert "AP 1.000; 6 x chair, 0 x missed chair at OKS 0.5, 6 results" in captured.out
    assert "has other keypoints than COCO" in captured.err and "6 x chair" in (output / "report.html").read_text()
