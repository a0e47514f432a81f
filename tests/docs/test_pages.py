"""The text of the documentation: links, the index, and messages that it quotes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.helpers.documentation import PAGES, page_name
from tests.helpers.source_files import FILES, ROOT, syntax_tree


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_linked_file_exists(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_the_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"]
    missing = [name for name in pages if f"]({name})" not in index]
    assert not missing, f"add to docs/README.md: {', '.join(missing)}"


def test_every_message_in_troubleshooting_is_a_message_of_the_program() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^### `(.+)`$", page, re.MULTILINE)
    assert len(messages) >= 15
    texts = strings_of_the_program()
    for message in messages:
        assert any(message in text for text in texts), message


def strings_of_the_program() -> list[str]:
    """All strings in the source files; an f-string has ``...`` for each value."""
    texts = []
    for path in FILES.values():
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values]
                texts.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return texts
