"""The page in a real browser: filters, layers, the opened image and addresses do what they say."""

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.diagnosis.report import write_report
from tests.helpers.browser import Browser, open_browser
from tests.helpers.diagnoses import HEIGHT, WIDTH, small_diagnosis

pytestmark = pytest.mark.slow

ESCAPE, ENTER, LEFT, RIGHT = "\ue00c", "\ue007", "\ue012", "\ue014"
"""Keys, as WebDriver codes them."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def quiet_console(browser: Browser) -> Iterator[None]:
    """After every test, the console must be empty: no error."""
    browser.console()
    yield
    assert browser.console() == []


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the small diagnosis; images 11 and 12 are there, the others are missing."""
    folder = tmp_path_factory.mktemp("one")
    diagnosis = small_diagnosis(folder)
    for image in diagnosis.images[:2]:
        cv2.imwrite(str(folder / image.file_name), np.full((HEIGHT, WIDTH, 3), 120, np.uint8))
    return write_report(diagnosis, folder / "page", folder)


def shown_images(browser: Browser) -> list[int]:
    return [int(number) for number in browser.attributes("#tiles .tile:not([hidden])", "data-image")]


def visible(browser: Browser, selector: str) -> bool:
    return bool(browser.run("return document.querySelector(arguments[0]).getClientRects().length > 0", selector))


def test_the_number_stands_in_the_middle_of_its_bar(browser: Browser, one: Path) -> None:
    browser.open(one)
    style = "getComputedStyle(document.querySelector('.cost .bar .ap'))"
    height, line_height = browser.run(f"const style = {style}; return [style.height, style.lineHeight]")
    assert height == line_height


def test_filters_leave_the_images_with_such_errors(browser: Browser, one: Path) -> None:
    browser.open(one)
    assert shown_images(browser) == [14, 13, 11, 12, 15]
    for filters, images in (
        ({"kind": "jitter"}, [11]),
        ({"kind": "missed"}, [14]),
        ({"kind": "background"}, [14]),
        ({"keypoint": "left_wrist"}, [11, 12]),
        ({"keypoint": "left_wrist", "kind": "swap"}, [12]),
        ({"keypoint": "left_ankle"}, []),
        ({"size": "small"}, [13]),
        ({"size": "small", "kind": "jitter"}, []),
    ):
        for name, value in filters.items():
            browser.choose(name, value)
            assert f"{name}={value.replace(' ', '+')}" in browser.address()
        assert sorted(shown_images(browser)) == images, filters
        assert ("No image matches" in browser.text("#gallery-count")) == (not images)
        browser.click("#filters [type=reset]")
        assert len(shown_images(browser)) == 5
    browser.choose("order", "file")
    assert shown_images(browser) == [11, 12, 13, 14, 15]


def test_numbers_in_the_tables_lead_to_their_images_and_back_returns(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.click(".costs tbody tr:nth-child(2) a")
    assert shown_images(browser) == [12]
    assert browser.count("#tiles .tile:not([hidden]) .truth .person:not(.faint)") == 1
    browser.run("history.back()")
    browser.wait(lambda: len(shown_images(browser)) == 5)
    browser.click(".keypoints tbody tr:first-child a")
    assert "keypoint=" in browser.address() and "kind=" in browser.address()
    browser.click(".sizes a")
    assert "size=" in browser.address() and "kind=" not in browser.address()
    browser.click("nav a:last-child")
    assert "size=" in browser.address(), "the menu keeps the filters"


def test_layers_can_be_switched_by_mouse_and_key(browser: Browser, one: Path) -> None:
    browser.open(one)
    tile = "#tiles [data-image='11'] "
    for key, layer, part in (("t", "truth", ".truth .limbs"), ("e", "errors", ".mark"), ("i", "pixels", "image")):
        browser.click(f"#gallery [name={layer}]")
        assert not visible(browser, tile + part) and f"{layer}=0" in browser.address()
        browser.run("document.activeElement.blur()")
        browser.press(key)
        browser.wait(lambda part=part: visible(browser, tile + part))
    assert not visible(browser, tile + ".box")
    browser.press("b")
    browser.wait(lambda: visible(browser, tile + ".box"))


def test_an_image_opens_with_its_people_and_keys_lead_on(browser: Browser, one: Path) -> None:
    browser.open(one)
    browser.focus("#tiles [data-image='11']")
    browser.press(ENTER)
    browser.wait(lambda: browser.count("#viewer[open]") == 1)
    assert "image=11" in browser.address() and browser.text("#position") == "3 of 5"
    assert browser.count("#viewer .mark.jitter") == 2 and browser.count("#viewer .mark.inversion") == 1
    rows = browser.texts("#viewer li")
    assert len(rows) == 2 and "nose" in rows[0] and "left wrist" in rows[1] and "OKS" in rows[1]
    whole = browser.attributes("#viewer .image", "viewBox")
    browser.press("z")
    browser.wait(lambda: browser.attributes("#viewer .image", "viewBox") != whole)
    assert browser.count("#viewer .result .person.faint") == 1 and "person=r0" in browser.address()
    browser.click("#viewer [data-show=r0]")
    assert browser.attributes("#viewer .image", "viewBox") == whole
    browser.press(RIGHT, RIGHT, RIGHT)
    browser.wait(lambda: "image=14" in browser.address())
    row = browser.texts("#viewer li")[0]
    assert row.startswith("Person 1") and "Missed person" in row and "missing" in browser.text("#viewer .note")
    browser.press(LEFT)
    browser.wait(lambda: browser.attributes("#viewer", "data-image") == ["15"])
    browser.press(ESCAPE)
    browser.wait(lambda: browser.count("#viewer[open]") == 0)
    assert "image=" not in browser.address()
    assert browser.run("return document.activeElement.dataset.image") == "15"


def test_the_address_restores_the_view(browser: Browser, one: Path) -> None:
    browser.open(one, "kind=jitter&truth=0&image=11")
    assert browser.count("#viewer[open]") == 1 and shown_images(browser) == [11]
    assert not visible(browser, "#viewer .truth .limbs")
    assert browser.run("return document.querySelector('[name=kind]').value") == "jitter"
    for view in ("run=0&image=nobody&sort=nothing", "count=-4&person=r99&image=11&kind=nothing", "%", "__proto__=1"):
        browser.open(one, view)
        assert browser.texts(".ap-value") == ["0.717"] and browser.console() == [], view
