"""The pages: their links, the tool that prints them, and examples that no test of commands runs."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.cli import main as cli
from tests.helpers.documentation import PAGES, page_name
from tests.helpers.source_files import ROOT
from tests.helpers.videos import write_media

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


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (DOCS / "settings.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(DOCS / "write_settings.py"))["make_page"](), "run python docs/write_settings.py"


SHORTER = {
    "IMAGES = 400": "IMAGES = 6",
    "EPOCHS = 6": "EPOCHS = 1",
    "model.width=32": "model.width=16",
    "train.input_size=192": "train.input_size=64",
    "inference.height=256": "inference.height=64",
}
"""Text of the notebook, and what replaces it."""


@pytest.mark.slow
def test_the_cells_of_the_notebook_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads((DOCS / "tour.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    code = "\n".join(cells)
    for text, replacement in SHORTER.items():
        assert code.count(text) == 1, text
        code = code.replace(text, replacement)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "tour.ipynb", "exec"), names)
    assert names["run"].finished
    assert "AP" in names["evaluation"].metrics
    assert names["person"].id == 1


@pytest.mark.parametrize("suffix", [".mkv", ".mp4", ".ts"])
def test_the_page_says_how_much_later_the_images_begin_than_the_sound(
    tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_media(tmp_path / f"x{suffix}", 3 + np.arange(20) / 10, sound=6)
    page = (DOCS / "videos.md").read_text()
    exec(page.partition("python -c '")[2].partition("')")[0].replace("clip.mp4", str(path)), {})
    assert float(capsys.readouterr().out) == pytest.approx(3, abs=0.1)
