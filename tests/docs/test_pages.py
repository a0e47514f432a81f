"""The pages: their links, and the tool that prints them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import posenet
from posenet.cli import main as cli
from tests.helpers.documentation import PAGES, page_name
from tests.helpers.source_files import ROOT

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_linked_file_and_heading_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if not target.startswith(("http://", "https://", "mailto:")):
            path, _, anchor = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), target
            assert not anchor or anchor in anchors_of(file), target


def text_of(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> list[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/notes/reliability.md"])
def test_every_file_that_a_page_about_the_code_names_exists(page: str) -> None:
    folders = (ROOT / name for name in ("posenet", "tests", "tools", "docs"))
    files = [file.as_posix() for folder in folders for file in folder.rglob("*.py")]
    for name in re.findall(r"[\w/]+\.py\b", (ROOT / page).read_text(encoding="utf-8")):
        assert any(file.endswith(f"/{name}") for file in files), name


def test_the_tool_lists_and_prints_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    names = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert {line.split()[0] for line in lines} == names and last.endswith(str(DOCS))
    for name in ("training", "docs/start.md"):
        assert cli.main(["docs", name]) == 0
        assert capsys.readouterr().out.startswith("# ")
    assert cli.main(["docs", "trainin"]) == 2
    assert "did you mean training?" in capsys.readouterr().err


def test_the_pages_are_found_where_pip_puts_them_beside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``pip install --target`` lists them in another folder."""
    monkeypatch.setattr(posenet, "__file__", str(tmp_path / "posenet" / "__init__.py"))
    pages = tmp_path / "share" / "doc" / "simplepose" / "docs"
    pages.mkdir(parents=True)
    (pages / "start.md").write_text("# First\n")
    assert cli.main(["docs"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "start  First"


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "write_settings.py"))["make_page"](), "run python docs/write_settings.py"
