"""The document without its script: complete in itself, and closed to what names of files may contain."""

import base64
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.diagnosis import report
from posenet.diagnosis.report import NOTHING, image_losses, write_report
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
    return Page(write_report(small_diagnosis(folder), folder / "new" / "report", provenance=facts))


def test_tables_and_bars_need_no_script(one: Page) -> None:
    text = one.plain().replace(NOTHING, "-")
    for part in (
        "Average precision 0.717 5 images, 9 people, 10 results Missed person costs most: 0.111 of the 0.283 AP"
        " that the results lack. 8 of 9 people are found at OKS 0.50, 5 at 0.95.",
        "Worst keypoints: nose (37.5% wrong), left wrist (25.0% wrong), left eye (12.5% wrong). "
        "AP50 0.859 AP75 0.740 APM 0.333 APL 0.810 AR 0.767 0.717 AP ",
        "Checkpoint last.pth Flip yes Scales 0.5, 1 Written 2030-01-02",
        "OKS threshold 0.50 0.55 0.60 0.65 0.70 0.75 0.80 0.85 0.90 0.95 "
        "AP 0.859 0.740 0.740 0.740 0.740 0.740 0.740 0.740 0.740 0.391 "
        "Misplaced corrected 0.859 0.859 0.859 0.859 0.859 0.859 0.740 0.740 0.740 0.391 Swap corrected ",
        "Inexact corrected 1.000 1.000 1.000 1.000 1.000 1.000 1.000 1.000 1.000 1.000 "
        "Background results 2 3 3 3 3 3 3 3 3 5 Missed people 1 2 2 2 2 2 2 2 2 4",
        "nose 8 37.5% 12.5% - - 25.0% left wrist 8 25.0% - 12.5% 12.5% - left eye 8 12.5% 12.5% - - - right",
        "small 1 person 0 medium 1 person 0 large 7 people 1",
    ):
        assert part in text
    alone, found = (
        ", ".join(re.findall(f'data-label="{label}">([^<]*)<', one.text)).replace(NOTHING, "-")
        for label in ("Alone", "Found")
    )
    assert alone == "+0.060, +0.016, +0.017, +0.000, +0.045, +0.045, +0.093, +0.096"
    assert found == (
        "8 keypoints, 1 keypoint, 1 keypoint, 2 keypoints, -, 2 results at OKS 0.50, 1 of 9 people, 3 more at OKS 0.95"
    )
    bars = [text[: text.index("</span>")] for text in one.text.split('<span class="bar"')[1:]]
    parts = [re.findall(r'<i class="(\w+)" style="width:(.*?)%"', bar) for bar in bars]
    assert parts[0] == [
        ("ap", "71.67"), ("miss", "5.99"), ("swap", "1.56"), ("inversion", "1.92"), ("score", "2.61"),
        ("missed", "11.09"), ("inexact", "5.15"),
    ]  # fmt: skip
    [nose] = [part for bar, part in zip(bars, parts) if "3 of 8 wrong" in bar]
    assert nose == [("good", "62.50"), ("miss", "12.50"), ("jitter", "25.00")]


def test_every_person_in_the_gallery_has_its_partner_errors_and_facts(one: Page) -> None:
    """The worst image is first. The page's script reads these texts."""
    names = ("person", "partner", "errors", "size", "facts")
    columns = [one.attributes("g", f"data-{name}") for name in names]
    people = ["; ".join(text or "-" for text in row) for row in zip(*columns)]
    assert people == [
        "t0; -; missed; large; large, 17 labelled",  # image 14
        "r0; -; background; -; score 0.550, OKS 0.000",
        "r1; -; background; -; score 0.500, OKS 0.000",
        "t0; -; -; small; small, 17 labelled",  # image 13
        f"r0; t0; {' '.join(f'miss:{k}' for k in range(8))}; small; score 0.600, OKS 0.529",
        "t0; -; -; large; large, 17 labelled",  # image 11
        "t1; -; -; large; large, 17 labelled",
        "r0; t0; jitter:0; large; score 0.900, OKS 0.982",
        "r1; t1; jitter:0 inversion:9; large; score 0.850, OKS 0.924",
        *(f"t{k}; -; -; large; large, 17 labelled" for k in range(4)),  # image 12
        "r0; t0; swap:9; large; score 0.800, OKS 0.941",
        *(f"r{k}; t{k}; -; large; score {0.8 - k / 20:.3f}, OKS 1.000" for k in range(1, 4)),
        "t0; -; -; medium; medium, 17 labelled",  # image 15
        "r0; t0; -; medium; score 0.450, OKS 1.000",
    ]
    assert one.attributes("a", "data-image") == ["14", "13", "11", "12", "15"]
    badges = [title for title in one.attributes("span", "title") if ": " in title]
    assert badges == ["Background: 2", "Missed person: 1", "Misplaced: 8", "Jitter: 2", "Inversion: 1", "Swap: 1"]


def test_people_and_errors_are_drawn_where_they_are(one: Page) -> None:
    """On a canvas 3.125 times as large as the image."""
    assert one.attributes("svg", "viewbox")[-5:] == ["0 0 2000 1250"] * 5
    gallery = one.text[one.text.index('id="tiles"') :]
    [limbs, _] = re.findall(r'class="limbs" d="M938 391L925 378(.*?)"', gallery)  # of image 15: annotated and found
    assert limbs.count("M") == len(COCO.drawn or COCO.parts) - 1 and "M938 453L881 453" in limbs, "the neck is derived"
    assert gallery.count('class="dots" d="M938 391h0M950 378h0M925 378h0') == 2
    marks = re.findall(r'class="mark (\w+)"><path d="(.*?)"/>\s*<g transform="(.*?)"', gallery)
    assert [kind for kind, *_ in marks] == ["miss"] * 8 + ["jitter", "jitter", "inversion", "swap"]
    assert marks[8] == ("jitter", "M488 212L469 212", "translate(488 212)")
    assert marks[11] == ("swap", "M796 598L609 598", "translate(796 598)")
    rects = [attributes for tag, attributes in one.elements if tag == "rect" and "y" in attributes]
    frames = [" ".join(map(str, rect.values())) for rect in rects if str(rect["class"]).startswith(("box", "frame"))]
    assert frames[:4] == [  # of image 14
        "box 798 192 280 820",
        "frame missed 758 152 360 900",
        "frame background 166 837 168 336",
        "frame background 1666 837 168 336",
    ]


def test_results_that_prediction_would_not_show_are_not_drawn_at_first(tmp_path: Path) -> None:
    page = Page(write_report(small_diagnosis(tmp_path), tmp_path, min_score=0.6))
    low = page.text.count('<g class="person low"')
    scores = [float(text.split()[1].strip(",")) for text in page.attributes("g", "data-facts") if "score" in text]
    assert low == sum(score < 0.6 for score in scores) > 0
    assert "Scores below 0.6" in page.plain()


def test_the_page_embeds_the_images_and_names_no_other_address(tmp_path: Path) -> None:
    diagnosis = small_diagnosis(tmp_path)
    cv2.imwrite(str(tmp_path / diagnosis.images[0].file_name), np.full((HEIGHT, WIDTH, 3), 120, np.uint8))
    page = Page(write_report(diagnosis, tmp_path / "report", tmp_path))
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"report.html", "diagnosis.json"}
    [image] = page.attributes("image", "href")
    assert image.startswith("data:image/jpeg;base64,/9j/")
    assert not re.findall(r"[a-z]+://|url\(|@import", page.text.replace(image, ""))
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert "src" not in attributes and not [name for name in attributes if name.startswith("on")]


def test_a_crowd_region_is_drawn_where_it_is_annotated_and_a_result_there_does_not_count(tmp_path: Path) -> None:
    document, results = small_data()
    document["annotations"].append(box_person(99, 15, (16, 32, 160, 64), 0, iscrowd=1))
    document["annotations"].append(box_person(100, 15, (0, 300, 50, 60), 3))
    results.append(make_result(15, np.full((17, 3), (100, 60, 1)), 0.3))
    page = Page(write_report(diagnose_data(document, results, tmp_path), tmp_path))
    [region] = [attributes for tag, attributes in page.elements if attributes.get("class") == "box ignored"]
    assert [region[name] for name in ("x", "y", "width", "height")] == ["50", "100", "500", "200"]
    facts = page.attributes("g", "data-facts")
    assert "score 0.300, OKS 0.000, in a crowd region, which does not count" in facts
    assert "medium, 3 labelled" in facts


def test_names_from_files_are_text(tmp_path: Path) -> None:
    diagnosis = diagnose_data(*small_data(HOSTILE), tmp_path, "<b>results</b>&amp; \udc80.json")
    page = Page(write_report(diagnosis, tmp_path, tmp_path))
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page.sources["script"])
    assert "default-src 'none'" in page.text, "the page may connect to nothing"
    assert not {"img", "b"} & {tag for tag, _ in page.elements}
    assert set(page.attributes("a", "data-name")) == set(HOSTILE)
    assert "<title>AP" in page.text and "&lt;b&gt;results&lt;/b&gt;&amp;amp; ?.json" in page.text


def test_results_without_third_values_are_drawn_whole(tmp_path: Path) -> None:
    document, results = small_data()
    flat = json.loads(json.dumps(results))
    for entry in flat:
        entry["keypoints"][2::3] = [0] * 17
    first, second = (
        Page(write_report(diagnose_data(document, content, tmp_path), tmp_path / "b")).text
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
    page = Page(write_report(diagnosis, tmp_path / "report", tmp_path))
    assert page.attributes("a", "data-image") == ["14", "13", "11"]
    [image] = page.attributes("image", "href")
    pixels = np.frombuffer(base64.b64decode(image.partition(",")[2]), np.uint8)
    assert max(cv2.imdecode(pixels, cv2.IMREAD_COLOR).shape) == report.IMAGE_SIDE
    other, damaged, missing = page.attributes("a", "data-note")
    assert f"{10 * WIDTH} x {10 * HEIGHT}" in other and f"{WIDTH} x {HEIGHT}" in other
    assert names[13].name in damaged and names[11].name in missing
