"""``posenet app`` as a process, and its page in Chromium."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posenet.cli.main import main
from posenet.images import write_image
from posenet.inference.predictor import Predictor
from tests.helpers.browser import open_browser
from tests.helpers.spot_networks import spot_people_image

START_SECONDS = 60


def test_without_gradio_one_line_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["app", "--checkpoint", "missing.pth"]) == 2
    expected = "posenet app: error: the page needs the package Gradio: pip install 'simplepose[app]'\n"
    assert capsys.readouterr().err == expected


def test_flags_say_where_the_page_is_and_its_end_is_an_interrupt(
    spot_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[tuple[object, ...]] = []

    def serve(
        load: Callable[[int | None], Predictor], *, stop_requested: Callable[[], bool], **options: object
    ) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        served.append((load(None).settings.height, *options.values(), stop_requested()))

    monkeypatch.setattr("posenet.cli.app.app", serve)
    words = ["app", "--checkpoint", str(spot_file), "--height", "128"]
    for more in ([], ["--host", "0.0.0.0", "--port", "7000"]):
        assert main([*words, *more]) == 130
        assert capsys.readouterr().err.endswith("posenet app: interrupted\n")
    assert served == [(128, "127.0.0.1", None, True), (128, "0.0.0.0", 7000, True)]


@pytest.mark.slow
def test_the_page_works_in_a_browser_without_a_network_until_ctrl_c(spot_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="pip install 'simplepose[app]'")
    photo = tmp_path / "holiday.png"
    write_image(photo, spot_people_image(128, 192, 2))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-m", "posenet", "app", "--checkpoint", str(spot_file), "--height", "128"]
    log = tmp_path / "log.txt"
    with log.open("w") as output, open_browser(tmp_path / "profile") as browser:
        # Nothing listens there: the page must not be asked for by way of a proxy.
        environment = {**os.environ, "TMPDIR": str(temporary), "HTTP_PROXY": "http://127.0.0.1:9"}
        process = subprocess.Popen(command, stderr=output, stdout=output, env=environment)
        try:
            end = time.monotonic() + START_SECONDS
            while "the page is at " not in log.read_text():
                assert process.poll() is None and time.monotonic() < end, log.read_text()
                time.sleep(0.1)
            address = log.read_text().partition("the page is at ")[2].partition(";")[0]
            browser.driver.get(address)
            browser.wait(lambda: browser.count("input[type=file]") == 1)
            browser.driver.find_element("css selector", "input[type=file]").send_keys(str(photo))
            browser.wait(lambda: "holiday" in browser.text("body"))
            # People of coloured spots have low scores.
            field = browser.driver.find_element("css selector", "input[type=number]")
            field.clear()
            field.send_keys("0.05")
            browser.driver.find_element("xpath", "//button[normalize-space()='Find people']").click()
            browser.wait(
                lambda: browser.run("return document.querySelector('textarea').value") == "2 people in 1 image"
            )
            browser.wait(lambda: browser.count("img[src*='holiday']") >= 1)
            loaded = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
            assert [name for name in loaded if not name.startswith((address, "data:", "blob:"))] == []
            assert [entry for entry in browser.driver.get_log("browser") if entry["level"] == "SEVERE"] == []
        finally:
            process.send_signal(signal.SIGINT)
            status = process.wait(START_SECONDS)
    assert status == 130
    _, last = log.read_text().splitlines()
    assert last == "posenet app: interrupted"
    assert list(temporary.glob("posenet-app-*")) == []
