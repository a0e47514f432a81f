"""The document without its script: complete in itself, and closed to what names of files may contain."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.diagnosis.report import write_report
from posenet.diagnosis.report.filters import format_gain, format_share
from posenet.diagnosis.report.tiles import CANVAS
from posenet.skeleton import COCO
from tests.helpers.diagnoses import HEIGHT, WIDTH, diagnose_data, small_data, small_diagnosis
from tests.helpers.drawn_data import person as box_person

HOSTILE = (
    "</script><script>alert(1)</script>.jpg",
    '"><img src=x onerror=alert(1)>.jpg',
    "<!--.jpg",
    "{{ 7 * 7 }}{% raw %}.jpg",
    "&lt;b&gt;.jpg",
)


class Page(HTMLParser):
    """The elements of a document, and the text of its scripts and styles."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sources = {tag: re.findall(f"<{tag}>(.*?)</{tag}>", self.text, re.S)[0] for tag in ("script", "style")}
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def attributes(self, tag: str, name: str) -> list[str]:
        return [attributes[name] or "" for found, attributes in self.elements if found == tag and name in attributes]

    def plain(self) -> str:
        """The text without markup, with single spaces."""
        body = re.sub(r"<(script|style)>.*?</\1>", "", self.text, flags=re.S)
        return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Page:
    folder = tmp_path_factory.mktemp("one")
    facts = {"Checkpoint": "last.pth", "Flip": "yes", "Scales": "0.5, 1", "Written": "2030-01-02"}
    return Page(write_report(small_diagnosis(folder), folder / "new" / "report", provenance=facts, progress=False))


def test_tables_and_charts_need_no_script(one: Page, tmp_path: Path) -> None:
    diagnosis = small_diagnosis(tmp_path)
    text = one.plain()
    assert "Checkpoint last.pth Flip yes Scales 0.5, 1 Written 2030-01-02" in text
    assert f"Average precision {diagnosis.ap:.3f} 5 images, 9 people, 10 results" in text
    for kind, label in (("miss", "Misplaced"), ("swap", "Swap"), ("inversion", "Inversion"), ("jitter", "Jitter")):
        assert re.search(rf"{label} [A-Z].*? {re.escape(format_gain(diagnosis.costs[kind]))} ", text)
    *others, missed, inexact = re.findall(r'data-label="Alone">([^<]*)<', one.text)
    gains = [ap - diagnosis.ap for ap in diagnosis.alone.values()]
    assert others == [format_gain(gain) for gain in gains[:-1]]
    assert float(missed) > 0.05 and float(missed) + float(inexact) == pytest.approx(gains[-1], abs=0.002)
    assert "left wrist 8 25.0 %" in text, "one inversion and one swap among eight"
    assert "Worst keypoints: " in text
    widths = [
        float(width.rstrip("%")) for width in re.findall(r'<svg class="part" x="[^"]*" width="([^"]*)"', one.text)
    ]
    assert widths[0] == pytest.approx(100 * diagnosis.ap, abs=0.1) and sum(widths) == pytest.approx(100, abs=0.2)
    charts = one.text[one.text.index('id="precision"') : one.text.index('id="keypoints"')]
    assert charts.count("<path class=") == 9, "an area for the AP and for each correction"
    assert charts.count("<rect class=") == 90
    first, *_, last = re.findall(r'<path class="(\w+)"', charts)
    assert (first, last) == ("inexact", "ap")
    gallery = one.text[one.text.index('id="tiles"') :]
    assert [len(re.findall(f'data-person="{name}', gallery)) for name in "trm"] == [9, 10, 1]
    assert gallery.count(", OKS at best ") == 10, "of every result"
    assert re.findall(r'class="tile" href="#image=(\d+)"', gallery)[0] == "14", "the worst image first"


def test_objects_of_another_category_have_its_name(tmp_path: Path) -> None:
    diagnosis = small_diagnosis(tmp_path)
    matched = replace(diagnosis.matched, skeleton=replace(COCO, category="bird"))
    page = Page(write_report(replace(diagnosis, matched=matched), tmp_path / "birds", progress=False))
    text = page.plain()
    assert "Missed bird" in text and 'data-name="bird"' in page.text
    assert not re.findall(r"(?i)\b(?:person|people|nobody)\b", text)


def test_the_headline_tells_missed_people_from_inexact_ones(tmp_path: Path) -> None:
    document, results = small_data()
    exact = [entry for entry in results if entry["image_id"] == 15]
    pages = {}
    inexact = [
        {"image_id": person["image_id"], "category_id": 1, "score": 0.9}
        | {"keypoints": [value + 3 * (index % 3 == 1) for index, value in enumerate(person["keypoints"])]}
        for person in document["annotations"]
    ]
    for name, content in (("missed", exact), ("inexact", inexact)):
        page = Page(write_report(diagnose_data(document, content, tmp_path), tmp_path / name, progress=False))
        pages[name] = page.plain()
    assert "Missed people cost most: " in pages["missed"]
    assert "1 of 9 people are found at OKS 0.50, 1 at 0.95" in pages["missed"]
    assert "Inexact keypoints cost most: " in pages["inexact"]
    advice = "Train longer first: fewer than half of the people are found."
    assert advice in pages["missed"] and advice not in pages["inexact"]


def test_the_page_embeds_the_images_and_names_no_other_address(tmp_path: Path) -> None:
    diagnosis = small_diagnosis(tmp_path)
    cv2.imwrite(str(tmp_path / diagnosis.images[0].file_name), np.full((HEIGHT, WIDTH, 3), 120, np.uint8))
    page = Page(write_report(diagnosis, tmp_path / "report", tmp_path, progress=False))
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["report.html"]
    [image] = page.attributes("image", "href")
    assert image.startswith("data:image/jpeg;base64,/9j/")
    assert not re.findall(r"[a-z]+://|url\(|@import", page.text.replace(image, ""))
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert not {"src", "style"} & attributes.keys() and not [name for name in attributes if name.startswith("on")]


def test_a_crowd_region_is_drawn_where_it_is_annotated(tmp_path: Path) -> None:
    document, results = small_data()
    document["annotations"].append(box_person(99, 15, (16, 32, 160, 64), 0, iscrowd=1))
    page = Page(write_report(diagnose_data(document, results, tmp_path), tmp_path, progress=False))
    [region] = [attributes for tag, attributes in page.elements if attributes.get("class") == "box ignored"]
    box = [float(region[name] or "") * WIDTH / CANVAS for name in ("x", "y", "width", "height")]
    assert box == pytest.approx([16, 32, 160, 64], abs=0.5)


def test_the_policy_allows_this_script_and_style_and_no_connections(one: Page) -> None:
    [policy] = [attributes["content"] for tag, attributes in one.elements if "http-equiv" in attributes]
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"
    assert rules.keys() == {"default-src", "img-src", "script-src", "style-src", "base-uri", "form-action"}
    for tag in ("script", "style"):
        digest = hashlib.sha256(one.sources[tag].encode()).digest()
        assert rules[f"{tag}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(", one.sources["script"]
    )


def test_names_from_files_are_text(tmp_path: Path) -> None:
    diagnosis = diagnose_data(*small_data(HOSTILE), tmp_path, "<b>results</b>&amp; \udc80.json")
    page = Page(write_report(diagnosis, tmp_path, tmp_path, progress=False))
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not {"img", "b"} & {tag for tag, _ in page.elements}
    assert set(page.attributes("a", "data-name")) == set(HOSTILE)
    assert "<title>AP" in page.text and "&lt;b&gt;results&lt;/b&gt;&amp;amp; ?.json" in page.text


def test_results_that_are_empty_or_have_no_third_values_are_shown(tmp_path: Path) -> None:
    document, results = small_data()
    nobody = Page(write_report(diagnose_data(document, [], tmp_path), tmp_path / "a", progress=False))
    assert "Missed people cost most" in nobody.plain() and 'data-person="r' not in nobody.text
    flat = json.loads(json.dumps(results))
    for entry in flat:
        entry["keypoints"][2::3] = [0] * 17
    first, second = (
        Page(write_report(diagnose_data(document, content, tmp_path), tmp_path / "b", progress=False)).text
        for content in (results, flat)
    )
    assert first == second


def test_numbers_are_written_for_readers() -> None:
    minus = "\N{MINUS SIGN}"
    gains = [format_gain(value) for value in (0.0004, -0.0004, 0.25, -1.5)]
    assert gains == ["0.000", "0.000", "+0.250", f"{minus}1.500"]
    assert [format_share(value) for value in (0, 0.0004, 0.25)] == ["0.0 %", "<0.1 %", "25.0 %"]
