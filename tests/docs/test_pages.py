"""The text of the documentation: links, the index, and messages that it quotes."""

from __future__ import annotations

import ast
import configparser
import re
import runpy
from pathlib import Path

import pytest

import posenet
from posenet.cli import main as cli
from tests.helpers.documentation import PAGES, page_name
from tests.helpers.source_files import FILES, ROOT, syntax_tree


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


def test_the_page_of_the_package_index_links_to_addresses_only() -> None:
    description = read_configuration()["metadata"]["long_description"]
    page = ROOT / description.removeprefix("file: ")
    assert re.findall(r"\]\(", text_of(page))
    assert not re.findall(r"\]\((?!https://)", text_of(page))


def test_every_file_that_a_page_shows_is_installed() -> None:
    patterns = ", ".join(read_configuration()["options.data_files"].values()).split(", ")
    installed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    shown = {page.parent / name for page in PAGES for name in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text_of(page))}
    assert {path.resolve() for path in shown} <= installed
    assert set(PAGES) <= installed


def read_configuration() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    pages = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md") if page.name != "README.md"]
    missing = [name for name in pages if f"]({name})" not in index]
    assert not missing, f"add to docs/README.md: {', '.join(missing)}"


def test_the_tool_lists_and_prints_the_pages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    docs = ROOT / "docs"
    assert {line.split()[0] for line in lines} == {
        page.relative_to(docs).with_suffix("").as_posix() for page in docs.rglob("*.md")
    }
    assert last.endswith(f"they are in {docs}")
    for name in ("notes/networks", "docs/start.md"):
        assert cli.main(["docs", name]) == 0
        assert capsys.readouterr().out.startswith("# ")
    assert cli.main(["docs", "trainin"]) == 2
    assert "there is no page trainin; did you mean training? posenet docs lists all" in capsys.readouterr().err


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


def test_messages_name_pages_as_the_tool_prints_them() -> None:
    docs = ROOT / "docs"
    texts = strings_of_the_program()
    assert not [text for text in texts if re.search(r"(?<!simplepose/)docs/\w+\.md", text)]
    named = {name for text in texts for name in re.findall(r"(?:see |\()posenet docs (\w+)", text)}
    assert len(named) >= 3
    assert not [name for name in named if not (docs / f"{name}.md").exists()]


def test_the_page_of_settings_is_up_to_date() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(ROOT / "docs" / "write_settings.py"))["make_page"](), (
        "run python docs/write_settings.py"
    )


def test_every_message_in_troubleshooting_is_a_message_of_the_program() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(messages) >= 15
    texts = strings_of_the_program()
    for message in messages:
        assert any(message in text for text in texts), message


def strings_of_the_program() -> list[str]:
    """All strings in the source files but docstrings; an f-string has ``...`` for each value."""
    texts = []
    for path in FILES.values():
        nodes = list(ast.walk(syntax_tree(path)))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if node in docstrings:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts
