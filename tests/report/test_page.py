"""The page in a real browser: filters, sorting, overlays, keys and addresses do what they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.report import write_report
from tests.helpers.browser import Browser, open_browser
from tests.helpers.diagnoses import HEIGHT, WIDTH, diagnosis_of, image_of, small_diagnosis, true_person, two_runs

HOSTILE_NAMES = (
    "<img src=x onerror=alert(1)>.jpg",
    "</script><script>alert(2)</script>.jpg",
    "<!--.jpg",
    "a\u2028b.jpg",
)
ESCAPE, ENTER, LEFT, RIGHT = "\ue00c", "\ue007", "\ue012", "\ue014"
"""Keys, as WebDriver codes them."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def quiet_console(browser: Browser) -> Iterator[None]:
    """After every test, the console must be empty: no error, and no request that the policy blocked."""
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.console()
    yield
    assert browser.console() == []


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the small diagnosis; images 11 and 12 are there, the others are missing."""
    folder = tmp_path_factory.mktemp("one")
    diagnosis = small_diagnosis()
    for image in diagnosis.images[:2]:
        cv2.imwrite(str(folder / image.file_name), np.full((HEIGHT, WIDTH, 3), 120, np.uint8))
    return write_report([diagnosis], None, folder, folder, progress=False)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two results files."""
    diagnoses, comparison = two_runs()
    return write_report(diagnoses, comparison, tmp_path_factory.mktemp("two"), None, progress=False)


def shown_images(browser: Browser) -> list[int]:
    return [int(number) for number in browser.attributes("#tiles .tile", "data-image")]


def test_the_summary_states_the_ap_and_what_each_kind_of_error_costs(browser: Browser, one: Path) -> None:
    browser.open(one)
    assert browser.text("#ap") == "0.400"
    assert browser.texts("#costs tbody th") and browser.count("#costs tbody tr") == 7
    assert "+0.150" in browser.texts("#costs tbody tr")[0]
    assert browser.text("#summary .headline").startswith("Jitter costs most")
    browser.wait(lambda: browser.count("#cost-bar g.part") == 8)
    widths = browser.run(
        "return [...document.querySelectorAll('#cost-bar g.part rect')].map(r => r.width.baseVal.value)"
    )
    full = browser.run("return document.querySelector('#cost-bar svg').viewBox.baseVal.width")
    assert sum(widths) == pytest.approx(full, abs=10), "the AP and the costs fill the bar"
    assert widths[0] == pytest.approx(0.4 * full, abs=2)


def test_the_ap_of_perfect_grouping_is_stated_if_it_is_known(browser: Browser, one: Path, tmp_path: Path) -> None:
    browser.open(one)
    assert browser.count("#grouping") == 0
    diagnosis = replace(small_diagnosis(), perfect_grouping={"AP": 0.55})
    browser.open(write_report([diagnosis], None, tmp_path, None, progress=False))
    assert "0.550" in browser.text("#grouping")
    assert "+0.150" in browser.text("#grouping")


def test_the_precision_chart_has_an_area_for_each_stage_and_follows_the_threshold(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.wait(lambda: browser.count("#precision-chart path.area") == 8)
    area = browser.attributes("#precision-chart path.area.ap", "d")
    browser.click("#precision .segments button:last-child")
    browser.wait(lambda: browser.attributes("#precision-chart path.area.ap", "d") not in ([], area))
    assert "oks=0.95" in browser.address()
    assert browser.text("#precision [aria-pressed=true]") == "0.95"


def test_the_other_charts_are_drawn(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.wait(lambda: browser.count("#threshold-chart rect.ap") == 10)
    browser.wait(lambda: browser.count("#false-chart path.line") == 2)
    assert browser.texts("#sensitivity h3") == ["Size", "Labelled keypoints", "Crowding", "Truncation", "Occlusion"]
    browser.click("#thresholds summary")
    assert browser.count("#thresholds tbody tr") == 10


def test_a_heading_sorts_the_keypoints_by_mouse_and_by_keyboard(browser: Browser, one: Path) -> None:
    browser.open(one)
    assert browser.texts("#keypoint-table tbody th")[0] == "nose", "most errors first"
    browser.click("#keypoint-table [data-sort=name]")
    names = browser.texts("#keypoint-table tbody th")
    assert names == sorted(names)
    assert browser.attributes("#keypoint-table th[aria-sort=ascending] button", "data-sort") == ["name"]
    browser.press(ENTER)  # the heading has kept the focus
    browser.wait(lambda: browser.texts("#keypoint-table tbody th") == names[::-1])
    assert browser.attributes("#keypoint-table th[aria-sort=descending] button", "data-sort") == ["name"]
    browser.focus("#keypoint-table [data-sort=inversion]")
    browser.press(" ")
    browser.wait(lambda: browser.texts("#keypoint-table tbody th")[0] == "left wrist")
    browser.open(one, browser.address())
    assert browser.texts("#keypoint-table tbody th")[0] == "left wrist", "the address keeps the order"


def test_the_gallery_shows_the_worst_images_first(browser: Browser, one: Path) -> None:
    browser.open(one)
    assert shown_images(browser) == [14, 13, 11, 12, 15]
    browser.choose("order", "file")
    assert shown_images(browser) == [11, 12, 13, 14, 15]


@pytest.mark.parametrize(
    "filters, images",
    [
        ({"kind": "jitter"}, [11]),
        ({"kind": "inversion"}, [11]),
        ({"kind": "swap"}, [12]),
        ({"kind": "missed"}, [14]),
        ({"kind": "background"}, [14]),
        ({"keypoint": "left_wrist"}, [11, 12]),
        ({"keypoint": "left_wrist", "kind": "swap"}, [12]),
        ({"keypoint": "left_ankle"}, []),
        ({"size": "small"}, [13]),
        ({"crowding": "3 or more"}, [12]),
        ({"crowding": "3 or more", "kind": "jitter"}, []),
    ],
)
def test_filters_leave_the_images_with_such_errors(
    browser: Browser, one: Path, filters: dict[str, str], images: list[int]
) -> None:
    browser.open(one)
    for name, value in filters.items():
        browser.choose(name, value)
    assert sorted(shown_images(browser)) == images
    if not images:
        assert "No image matches" in browser.text("#gallery-count")
    browser.click("#clear")
    assert len(shown_images(browser)) == 5


def test_the_gallery_states_how_many_images_it_shows(
    browser: Browser, one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser.open(one)
    assert browser.text("#gallery-count") == "5 of 5 images."
    monkeypatch.setattr("posenet.report.gallery.MAX_IMAGES", 3)
    monkeypatch.setattr("posenet.report.gallery.RANKED_IMAGES", 3)
    browser.open(write_report([small_diagnosis()], None, tmp_path, None, progress=False))
    assert browser.text("#gallery-count").startswith("3 of 3 images. The page holds 3 of 5 images: the worst")


def test_filters_dim_the_people_without_such_an_error(browser: Browser, one: Path) -> None:
    browser.open(one, "run=0&kind=inversion")
    assert browser.count("#tiles .person.truth") == 2
    assert browser.count("#tiles .person.truth.faint") == 1


def test_numbers_in_the_tables_lead_to_their_images(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.click("#costs tbody tr:nth-child(2) .link")
    assert shown_images(browser) == [12]
    browser.run("history.back()")
    browser.wait(lambda: len(shown_images(browser)) == 5)
    browser.click("#keypoint-table tbody tr:first-child button:not(:disabled)")
    assert "keypoint=nose" in browser.address()


@pytest.mark.parametrize(
    "layer, selector",
    [("truth", ".person.truth"), ("result", ".person.result"), ("errors", ".mark"), ("pixels", "image")],
)
def test_an_overlay_can_be_switched_off_and_on(browser: Browser, one: Path, layer: str, selector: str) -> None:
    browser.open(one)
    drawn = browser.count(f"#tiles {selector}")
    assert drawn > 0
    browser.click(f"#gallery [data-layer={layer}]")
    assert browser.count(f"#tiles {selector}") == 0
    assert browser.attributes(f"#gallery [data-layer={layer}]", "aria-pressed") == ["false"]
    assert f"{layer}=0" in browser.address()
    browser.press({"truth": "t", "result": "r", "errors": "e", "pixels": "i"}[layer])
    browser.wait(lambda: browser.count(f"#tiles {selector}") == drawn)


def test_boxes_are_drawn_when_asked_for(browser: Browser, one: Path) -> None:
    browser.open(one)
    assert browser.count("#tiles .box") == 0
    browser.press("b")
    browser.wait(lambda: browser.count("#tiles .box:not(.ignored)") == 7)
    assert browser.count("#tiles .box.ignored") == 1, "a crowd region"


def test_every_kind_of_error_has_its_mark(browser: Browser, one: Path) -> None:
    browser.open(one, "run=0&image=11")
    assert browser.count("#viewer .mark.jitter") == 2
    assert browser.count("#viewer .mark.inversion") == 1
    browser.open(one, "run=0&image=14")
    assert browser.count("#viewer .frame.missed") == 1
    assert browser.count("#viewer .frame.background") == 2


def test_an_image_opens_and_keys_lead_to_the_next_and_back(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.focus("#tiles .tile")
    browser.press(RIGHT)
    browser.press(ENTER)
    browser.wait(lambda: browser.count("#viewer[open]") == 1)
    assert "image=13" in browser.address()
    browser.press(RIGHT)
    browser.wait(lambda: "image=11" in browser.address())
    browser.press(LEFT)
    browser.press(LEFT)
    browser.wait(lambda: "image=14" in browser.address())
    browser.press(LEFT)
    browser.wait(lambda: browser.attributes("#viewer", "data-image") == ["15"])
    browser.press(ESCAPE)
    browser.wait(lambda: browser.count("#viewer[open]") == 0)
    assert "image=" not in browser.address()
    assert browser.run("return document.activeElement.dataset.image") == "15"


def test_a_person_can_be_enlarged(browser: Browser, one: Path) -> None:
    browser.open(one, "run=0&image=11")
    whole = browser.attributes("#viewer svg.image", "viewBox")
    assert whole == [f"0 0 {WIDTH} {HEIGHT}"]
    browser.press("z")
    browser.wait(lambda: browser.attributes("#viewer svg.image", "viewBox") != whole)
    assert "person=r0" in browser.address()
    assert browser.count("#viewer .person.result.faint") == 1
    browser.click("#viewer [data-person=r0]")
    assert browser.attributes("#viewer svg.image", "viewBox") == whole


def test_the_address_restores_the_view_and_back_returns(browser: Browser, one: Path) -> None:
    browser.open(one, "run=0&kind=jitter&truth=0&image=11&sort=name")
    assert browser.count("#viewer[open]") == 1
    assert browser.count("#viewer .person.truth") == 0
    assert shown_images(browser) == [11]
    browser.open(one)
    browser.choose("kind", "swap")
    browser.click("#tiles .tile")
    browser.wait(lambda: browser.count("#viewer[open]") == 1)
    browser.run("history.back()")
    browser.wait(lambda: browser.count("#viewer[open]") == 0)
    assert shown_images(browser) == [12]
    browser.run("history.back()")
    browser.wait(lambda: len(shown_images(browser)) == 5)
    browser.run("history.forward()")
    browser.wait(lambda: shown_images(browser) == [12])
    assert browser.run("return document.querySelector('[name=kind]').value") == "swap"


@pytest.mark.parametrize(
    "view", ["run=7&image=nobody&sort=nothing", "oks=3&count=-4&person=r99&image=11", "%", "__proto__=1"]
)
def test_an_address_that_makes_no_sense_does_no_harm(browser: Browser, one: Path, view: str) -> None:
    browser.open(one, view)
    assert browser.text("#ap") == "0.400"
    assert shown_images(browser)


def test_an_image_that_is_missing_is_drawn_on_a_plain_ground_with_a_note(browser: Browser, one: Path) -> None:
    browser.open(one, "run=0&image=13")
    assert browser.count("#viewer image") == 0
    assert browser.count("#viewer .person.result") == 1
    assert "missing" in browser.text("#viewer .note")
    browser.open(one, "run=0&image=11")
    assert browser.count("#viewer image") == 1
    assert browser.count("#viewer .note") == 0


def test_a_report_without_images_says_so_once(browser: Browser, two: Path) -> None:
    browser.open(two)
    assert browser.count("#tiles image") == 0
    assert browser.count("#tiles .person.result") > 0
    assert "--images" in browser.text("#gallery .note")


def test_help_opens_with_a_question_mark_and_closes_with_escape(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.press("?")
    browser.wait(lambda: browser.count("#help[open]") == 1)
    assert "Inversion" in browser.text("#help")
    browser.press(ESCAPE)
    browser.wait(lambda: browser.count("#help[open]") == 0)


def test_dark_follows_the_system_until_the_reader_chooses(browser: Browser, one: Path) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    browser.open(one)
    light = browser.run(background)
    browser.prefer("dark")
    dark = browser.run(background)
    assert dark != light
    browser.click("#theme")
    assert browser.run(background) == light
    browser.open(one)
    assert browser.run(background) == light, "the choice is kept"
    browser.press("d")
    browser.wait(lambda: browser.run(background) == dark)
    browser.run("localStorage.clear()")


@pytest.mark.parametrize("view", ["", "run=0&image=11", "run=0&kind=jitter"])
@pytest.mark.parametrize("pages", ["one", "two"])
def test_nothing_is_wider_than_a_telephone(
    browser: Browser, request: pytest.FixtureRequest, pages: str, view: str
) -> None:
    browser.resize(360, 740)
    browser.open(request.getfixturevalue(pages), view)
    assert browser.run("return document.documentElement.scrollWidth") <= 360
    assert browser.run("return visualViewport.scale") == 1


def test_long_names_do_not_widen_the_page(browser: Browser, tmp_path: Path) -> None:
    diagnoses, comparison = two_runs()
    long = "y" * 200
    diagnoses = [*diagnoses, replace(diagnoses[1], name=long)]
    [difference] = comparison.differences
    comparison = replace(
        comparison,
        names=[*comparison.names, long],
        differences=[difference, replace(difference, name=long)],
    )
    browser.open(write_report(diagnoses, comparison, tmp_path, None, progress=False))
    assert browser.run("return document.documentElement.scrollWidth") <= 1280


def test_the_opened_image_has_all_its_buttons_in_one_row_on_a_telephone(browser: Browser, two: Path) -> None:
    browser.resize(360, 740)
    browser.open(two, "run=0&image=11")
    script = "return [...document.querySelectorAll('#viewer .icon')].map(node => node.getBoundingClientRect().top)"
    tops = browser.run(script)
    assert len(tops) == 3 and len(set(tops)) == 1


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("ap", [0.2, 0.4, 0.75])
def test_the_texts_of_the_bar_fit_their_parts(browser: Browser, tmp_path: Path, ap: float, width: int) -> None:
    browser.resize(width, 900)
    browser.open(write_report([small_diagnosis(ap=ap)], None, tmp_path, None, progress=False))
    browser.wait(lambda: browser.count("#cost-bar .part") == 8)
    script = """
        const right = (node) => node.getBoundingClientRect().right;
        return [...document.querySelectorAll("#cost-bar .part")].flatMap((part) =>
          [...part.querySelectorAll("text")].map((text) => right(part.querySelector("rect")) - right(text)));
    """
    margins = browser.run(script)
    assert margins and min(margins) >= 0


def test_the_printed_page_has_the_tables_but_no_controls(browser: Browser, one: Path) -> None:
    browser.prefer("dark", media="print")
    browser.open(one)
    visible = "return document.querySelector(arguments[0]).checkVisibility()"
    assert browser.run(visible, "#costs")
    assert browser.run(visible, "#tiles")
    assert not browser.run(visible, "#filters")
    assert not browser.run(visible, "#theme")
    assert browser.run("return getComputedStyle(document.body).colorScheme") == "light"
    assert browser.print_pages().startswith(b"%PDF")


def test_names_from_files_are_shown_and_never_run(browser: Browser, tmp_path: Path) -> None:
    images = [
        image_of(number, [true_person(300)], [{0: "miss"}], name=name) for number, name in enumerate(HOSTILE_NAMES, 1)
    ]
    diagnosis = diagnosis_of(images, name="<b>results</b>&amp;.json")
    browser.open(write_report([diagnosis], None, tmp_path, tmp_path, progress=False))
    assert browser.text("#title") == "<b>results</b>&amp;.json"
    assert sorted(browser.attributes("#tiles .file", "title")) == sorted(HOSTILE_NAMES)
    assert browser.count("b, img") == 0
    assert browser.count("script") == 2
    browser.click("#tiles .tile")
    browser.wait(lambda: browser.count("#viewer[open]") == 1)
    assert browser.count("img") == 0


def test_the_policy_stops_connections_and_other_scripts(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.broken = 1'; document.body.append(s)"
    )
    assert browser.run("return window.broken") is None
    script = "const done = arguments[0]; fetch('http://127.0.0.1:9/').then(() => done('sent'), e => done(String(e)))"
    assert "sent" not in browser.driver.execute_async_script(script)
    messages = browser.console()
    assert any("script-src" in message for message in messages)
    assert any("default-src" in message or "connect-src" in message for message in messages)


def test_two_results_files_are_compared(browser: Browser, two: Path) -> None:
    browser.open(two)
    assert browser.text("#comparison .headline") == "after.json is better: +0.050 AP."
    browser.wait(lambda: browser.count("#interval-chart g.interval.better") == 1)
    assert browser.texts("#run-tables figure:first-child thead th") == ["before.json", "after.json"]
    assert browser.texts("#run-tables tbody tr")[0].split() == ["AP", "0.400", "0.450", "▲", "+0.050"]
    assert "Share of good keypoints" in browser.texts("#comparison h3")
    assert browser.count("#comparison .changes figure:first-child .worse") == 1
    assert browser.attributes("#changed .change", "data-image") == ["13"]
    browser.click("#changed .change")
    browser.wait(lambda: browser.count("#viewer[open]") == 1)
    assert browser.count("#viewer .mark.miss") == 0, "the second file has no errors in this image"
    browser.press("1")
    browser.wait(lambda: browser.count("#viewer .mark.miss") == 8)
    browser.press(ESCAPE)
    browser.wait(lambda: browser.count("#viewer[open]") == 0)
    assert browser.text("#ap") == "0.400"
    browser.choose("order", "worst")
    assert 13 in shown_images(browser)[:2]
    browser.run("document.activeElement.blur()")
    browser.press("2")
    browser.wait(lambda: browser.text("#ap") == "0.450")
    assert 13 in shown_images(browser)[-2:], "the gallery follows the file"


def test_the_images_that_changed_most_can_come_first(browser: Browser, two: Path) -> None:
    browser.open(two, "run=1")
    browser.choose("order", "changed")
    assert shown_images(browser)[0] == 13


def test_one_results_file_has_no_comparison(browser: Browser, one: Path) -> None:
    browser.open(one)
    assert browser.count("#comparison") == 0
    assert browser.count("#runs .segments") == 0


def test_several_results_files_without_a_comparison_can_be_chosen(browser: Browser, tmp_path: Path) -> None:
    diagnoses, _ = two_runs()
    browser.open(write_report(diagnoses, None, tmp_path, None, progress=False))
    assert browser.count("#comparison") == 0
    browser.click("#runs button:last-child")
    assert browser.text("#ap") == "0.450"
