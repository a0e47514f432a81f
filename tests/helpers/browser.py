"""A headless Chromium without a network, for tests of pages."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-quic --disable-extensions --window-size=1280,900"
).split()
WAIT = 10.0
"""Seconds until a condition that does not come true fails a test."""


class Browser:
    """One tab, and short words for what tests do with it."""

    def __init__(self, driver: "Chrome") -> None:
        self.driver = driver

    def open(self, path: Path, view: str = "") -> None:
        """Load a page from the disk; ``view`` is the address after the #."""
        self.driver.get("about:blank")
        self.driver.get(path.as_uri() + (f"#{view}" if view else ""))

    def run(self, script: str, *arguments: object) -> Any:
        """Run JavaScript as the body of a function and return its result."""
        return self.driver.execute_script(script, *arguments)

    def count(self, selector: str) -> int:
        return len(self.texts(selector))

    def texts(self, selector: str) -> list[str]:
        """The text of every element that matches, as the page shows it."""
        script = "return [...document.querySelectorAll(arguments[0])].map(node => (node.innerText ?? '').trim())"
        return list(self.run(script, selector))

    def text(self, selector: str) -> str:
        [text] = self.texts(selector)
        return text

    def attributes(self, selector: str, name: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(node => node.getAttribute(arguments[1]))"
        return list(self.run(script, selector, name))

    def click(self, selector: str) -> None:
        element = self.driver.find_element("css selector", selector)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        self._settle()

    def choose(self, name: str, value: str) -> None:
        """Choose an option of the select element with this name."""
        from selenium.webdriver.support.select import Select

        Select(self.driver.find_element("name", name)).select_by_value(value)
        self._settle()

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()
        self._settle()

    def _settle(self) -> None:
        """Wait until the page has handled the events so far; a change of the address is one of them."""
        self.driver.execute_async_script("setTimeout(() => requestAnimationFrame(() => setTimeout(arguments[0])))")

    def focus(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).focus()", selector)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; fail after ``WAIT`` seconds."""
        end = time.monotonic() + WAIT
        while not condition():
            assert time.monotonic() < end, f"still not true after {WAIT} seconds"
            time.sleep(0.02)

    def address(self) -> str:
        """The address after the #."""
        return str(self.run("return location.hash.slice(1)"))

    def console(self) -> list[str]:
        """Messages of the console since the last call: errors, blocked requests and warnings."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile folder; skip the test if Chromium, its driver or Selenium is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs Selenium (pip install selenium)")
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver_binary = shutil.which("chromedriver")
    if binary is None or driver_binary is None:
        pytest.skip("Chromium and its driver are not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_binary))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
