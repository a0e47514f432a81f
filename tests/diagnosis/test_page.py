"""The document without its script: complete in itself, and closed to what names of files may contain."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.diagnosis import report
from posenet.diagnosis.report import (
    NOTHING,
    format_ap,
    format_gain,
    format_share,
    image_losses,
    pluralize,
    write_report,
)
from posenet.skeleton import COCO
from tests.helpers.diagnoses import HEIGHT, WIDTH, diagnose_data, make_result, small_data, small_diagnosis
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


def test_tables_and_charts_need_no_script(one: Page) -> None:
    text = one.plain().replace(NOTHING, "-")
    for part in (
        "Average precision 0.717 5 images, 9 people, 10 results Missed people cost most: 0.111 of the 0.283 AP"
        " that the results lack. 8 of 9 people are found at OKS 0.50, 5 at 0.95.",
        "Worst keypoints: nose (37.5 % wrong), left wrist (25.0 % wrong), left eye (12.5 % wrong). "
        "AP50 0.859 AP75 0.740 APM 0.333 APL 0.810 AR 0.767 AP ",
        "Checkpoint last.pth Flip yes Scales 0.5, 1 Written 2030-01-02",
        "OKS threshold 0.50 0.55 0.60 0.65 0.70 0.75 0.80 0.85 0.90 0.95 "
        "AP 0.859 0.740 0.740 0.740 0.740 0.740 0.740 0.740 0.740 0.391 "
        "Misplaced corrected 0.859 0.859 0.859 0.859 0.859 0.859 0.740 0.740 0.740 0.391 Swap corrected ",
        "Inexact corrected 1.000 1.000 1.000 1.000 1.000 1.000 1.000 1.000 1.000 1.000 "
        "Background results 2 3 3 3 3 3 3 3 3 5 Missed people 1 2 2 2 2 2 2 2 2 4",
        "nose 8 37.5 % 12.5 % - - 25.0 % left wrist 8 25.0 % - 12.5 % 12.5 % - left eye 8 12.5 % 12.5 % - - - right",
        "small 1 person, 0 missed 0.100 medium 1 person, 0 missed 0.333 large 7 people, 1 missed 0.810",
    ):
        assert part in text
    assert one.attributes("svg", "aria-label")[0] == (
        "AP 0.717, Misplaced +0.060, Swap +0.016, Inversion +0.019, Jitter 0.000, Score +0.026, Background 0.000, "
        "Missed person +0.111, Inexact +0.051"
    )
    alone, found = (
        ", ".join(re.findall(f'data-label="{label}">([^<]*)<', one.text)).replace(NOTHING, "-")
        for label in ("Alone", "Found")
    )
    assert alone == "+0.060, +0.016, +0.017, 0.000, +0.045, +0.045, +0.093, +0.122"
    assert found == (
        "8 keypoints, 1 keypoint, 1 keypoint, 2 keypoints, -, 2 results at OKS 0.50, 1 of 9 people, 3 more at OKS 0.95"
    )
    nose = one.text[one.text.index('aria-label="3 of 8 wrong"') :]
    parts = re.findall(r'<rect class="(\w+)" x="(.*?)" width="(.*?)"', nose[: nose.index("</svg>")])
    assert parts == [("good", "0%", "62.5%"), ("miss", "62.5%", "12.5%"), ("jitter", "75%", "25%")]
    parts = re.findall(r'<svg class="part" x="(.*?)%" width="(.*?)%">\s*<title>(.*?)</title>', one.text)
    assert [" ".join(part) for part in parts] == [
        "0 71.67 AP 0.717", "71.67 5.99 Misplaced 0.060", "77.66 1.561 Swap 0.016", "79.22 1.924 Inversion 0.019",
        "81.15 2.614 Score 0.026", "83.76 11.09 Missed person 0.111", "94.85 5.149 Inexact 0.051",
    ]  # fmt: skip
    charts = one.text[one.text.index('id="precision"') : one.text.index('id="keypoints"')]
    areas = re.findall(r'<path class="(\w+)" d="M0 100(.*)L100 100Z"', charts)
    assert len(areas) == 9, "an area for the AP and for each correction"
    assert areas[0] == ("inexact", "".join(f"L{x} 0" for x in range(101)))
    columns = re.findall(r'<rect class="(\w+)" x="(.*?)%" width="8.8%" y="(.*?)%" height="(.*?)%"', charts)
    assert [column[1:] for column in columns[8::9]] == [
        ("0.6", "14.06", "85.94"),
        *((f"{x}.6", "26.04", "73.96") for x in range(10, 90, 10)),
        ("90.6", "60.89", "39.11"),
    ]
    assert [column[3] for column in columns[:9]] == ["100"] * 2 + ["88.12"] * 2 + ["85.94"] * 5
    assert areas[-1][0] == "ap" and "L44 3.333L45 5L46 5L" in areas[-1][1]


def test_every_person_in_the_gallery_has_its_partner_errors_and_facts(one: Page) -> None:
    """The worst image is first. The page's script reads these texts."""
    names = ("person", "partner", "errors", "size", "facts")
    columns = [one.attributes("g", f"data-{name}") for name in names]
    people = ["; ".join(text or "-" for text in row) for row in zip(*columns)]
    assert people == [
        "t0; -; -; large; large, 17 labelled",  # image 14
        "r0; -; background; -; score 0.550, OKS at best 0.000",
        "r1; -; background; -; score 0.500, OKS at best 0.000",
        "m0; t0; missed; large; -",
        "t0; -; -; small; small, 17 labelled",  # image 13
        f"r0; t0; {' '.join(f'miss:{k}' for k in range(8))}; small; score 0.600, OKS at best 0.529",
        "t0; -; -; large; large, 17 labelled",  # image 11
        "t1; -; -; large; large, 17 labelled",
        "r0; t0; jitter:0; large; score 0.900, OKS at best 0.982",
        "r1; t1; jitter:0 inversion:9; large; score 0.850, OKS at best 0.924",
        *(f"t{k}; -; -; large; large, 17 labelled" for k in range(4)),  # image 12
        "r0; t0; swap:9; large; score 0.800, OKS at best 0.941",
        *(f"r{k}; t{k}; -; large; score {0.8 - k / 20:.3f}, OKS at best 1.000" for k in range(1, 4)),
        "t0; -; -; medium; medium, 17 labelled",  # image 15
        "r0; t0; -; medium; score 0.450, OKS at best 1.000",
    ]
    assert one.attributes("a", "data-image") == ["14", "13", "11", "12", "15"]
    badges = [title for title in one.attributes("span", "title") if ": " in title]
    assert badges == ["Background: 2", "Missed person: 1", "Misplaced: 8", "Jitter: 2", "Inversion: 1", "Swap: 1"]


def test_people_and_errors_are_drawn_where_they_are(one: Page) -> None:
    """On a canvas 3.125 times as large as the image."""
    assert one.attributes("svg", "viewbox")[-5:] == ["0 0 2000 1250"] * 5
    gallery = one.text[one.text.index('id="tiles"') :]
    limbs = (
        "M938 391L925 378M938 391L950 378M925 378L909 388M950 378L966 388M937 453L938 391M937 453L881 453"
        "M937 453L994 453M881 453L856 547M856 547L850 631M994 453L1019 547M1019 547L1025 631M881 453L903 641"
        "M994 453L972 641M903 641L972 641M903 641L900 766M900 766L900 891M972 641L975 766M975 766L975 891"
    )
    dots = (
        "M938 391h0M950 378h0M925 378h0M966 388h0M909 388h0M994 453h0M881 453h0M1019 547h0M856 547h0M1025 631h0"
        "M850 631h0M972 641h0M903 641h0M975 766h0M900 766h0M975 891h0M900 891h0"
    )
    whole = f'<path class="limbs" d="{limbs}"/><path class="dots" d="{dots}"/>'
    assert gallery.count(whole) == 2, "the person of image 15 and the perfect result"
    marks = re.findall(r'class="mark (\w+)"><path d="(.*?)"/><g transform="(.*?)"', gallery)
    assert [kind for kind, *_ in marks] == ["miss"] * 8 + ["jitter", "jitter", "inversion", "swap"]
    assert marks[8] == ("jitter", "M488 212L469 212", "translate(488 212)")
    assert marks[11] == ("swap", "M796 598L609 598", "translate(796 598)")
    rects = [attributes for tag, attributes in one.elements if tag == "rect" and "y" in attributes]
    frames = [" ".join(map(str, rect.values())) for rect in rects if str(rect["class"]).startswith(("box", "frame"))]
    assert frames[:4] == [  # of image 14
        "box 798 192 280 820",
        "frame background 166 837 168 336",
        "frame background 1666 837 168 336",
        "frame missed 758 152 360 900",
    ]


def test_objects_of_another_category_have_its_name(tmp_path: Path) -> None:
    diagnosis = small_diagnosis(tmp_path)
    matched = replace(diagnosis.matched, skeleton=replace(COCO, category="bird"))
    page = Page(write_report(replace(diagnosis, matched=matched), tmp_path / "birds", progress=False))
    text = page.plain()
    assert "Missed bird" in text and 'data-name="bird"' in page.text
    assert not re.findall(r"(?i)\b(?:person|people|nobody)\b", text)


def test_results_that_prediction_would_not_show_are_not_drawn_at_first(tmp_path: Path) -> None:
    page = Page(write_report(small_diagnosis(tmp_path), tmp_path, min_score=0.6, progress=False))
    low = page.text.count('<g class="person low"')
    scores = [float(text.split()[1].strip(",")) for text in page.attributes("g", "data-facts") if "score" in text]
    assert low == sum(score < 0.6 for score in scores) > 0
    assert "Scores below 0.6" in page.plain()


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


def test_a_crowd_region_is_drawn_where_it_is_annotated_and_a_result_there_does_not_count(tmp_path: Path) -> None:
    document, results = small_data()
    document["annotations"].append(box_person(99, 15, (16, 32, 160, 64), 0, iscrowd=1))
    document["annotations"].append(box_person(100, 15, (0, 300, 50, 60), 3))
    results.append(make_result(15, np.full((17, 3), (100, 60, 1)), 0.3))
    page = Page(write_report(diagnose_data(document, results, tmp_path), tmp_path, progress=False))
    [region] = [attributes for tag, attributes in page.elements if attributes.get("class") == "box ignored"]
    assert [region[name] for name in ("x", "y", "width", "height")] == ["50", "100", "500", "200"]
    facts = page.attributes("g", "data-facts")
    assert "score 0.300, OKS at best 0.000, in a crowd region, which does not count" in facts
    assert "medium, 3 labelled" in facts


def test_names_from_files_are_text(tmp_path: Path) -> None:
    diagnosis = diagnose_data(*small_data(HOSTILE), tmp_path, "<b>results</b>&amp; \udc80.json")
    page = Page(write_report(diagnosis, tmp_path, tmp_path, progress=False))
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page.sources["script"])
    assert "default-src 'none'" in page.text, "the page may connect to nothing"
    assert not {"img", "b"} & {tag for tag, _ in page.elements}
    assert set(page.attributes("a", "data-name")) == set(HOSTILE)
    assert "<title>AP" in page.text and "&lt;b&gt;results&lt;/b&gt;&amp;amp; ?.json" in page.text


def test_numbers_are_written_for_readers() -> None:
    minus = "\N{MINUS SIGN}"
    gains = [format_gain(value) for value in (0.0004, -0.0004, 0.25, -1.5)]
    assert gains == ["0.000", "0.000", "+0.250", f"{minus}1.500"]
    assert [format_share(value) for value in (0, 0.0004, 0.25)] == ["0.0 %", "<0.1 %", "25.0 %"]
    assert [pluralize(count, "image") for count in (1, 1234, 0)] == ["1 image", "1,234 images", "0 images"]
    assert [format_ap(value) for value in (-1, 0, 0.12345)] == [NOTHING, "0.000", "0.123"]


def test_results_without_third_values_are_drawn_whole(tmp_path: Path) -> None:
    document, results = small_data()
    flat = json.loads(json.dumps(results))
    for entry in flat:
        entry["keypoints"][2::3] = [0] * 17
    first, second = (
        Page(write_report(diagnose_data(document, content, tmp_path), tmp_path / "b", progress=False)).text
        for content in (results, flat)
    )
    assert first == second


def test_the_images_that_cost_most_are_shown_small_or_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagnosis = small_diagnosis(tmp_path)
    assert image_losses(diagnosis)[2:] == pytest.approx([8 / 17, 1, 0], abs=0.01)
    monkeypatch.setattr(report, "MAX_IMAGES", 3)
    names = {image.id: tmp_path / image.file_name for image in diagnosis.images}
    cv2.imwrite(str(names[14]), np.full((10 * HEIGHT, 10 * WIDTH, 3), 90, np.uint8))
    names[13].write_bytes(b"\xff\xd8 no more")
    page = Page(write_report(diagnosis, tmp_path / "report", tmp_path, progress=False))
    assert page.attributes("a", "data-image") == ["14", "13", "11"]
    [image] = page.attributes("image", "href")
    pixels = np.frombuffer(base64.b64decode(image.partition(",")[2]), np.uint8)
    assert max(cv2.imdecode(pixels, cv2.IMREAD_COLOR).shape) == report.IMAGE_SIDE
    other, damaged, missing = page.attributes("a", "data-note")
    assert f"{10 * WIDTH} x {10 * HEIGHT}" in other and f"{WIDTH} x {HEIGHT}" in other
    assert names[13].name in damaged and names[11].name in missing
