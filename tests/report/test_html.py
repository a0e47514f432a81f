"""The document: complete in itself, and closed to what names of files may contain."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from posenet.report.html import SCRIPTS, encode_data, render_page
from tests.helpers.source_files import PACKAGE

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "--> ]]>",
    "<img src=x onerror=alert(1)>.jpg",
    "line\u2028separator\u2029",
    "&lt;&amp;",
    "{{script}}",
    "lone \udc80 surrogate",
    'quotes " and \\ backslashes',
]


class Elements(HTMLParser):
    """The tags of a document, and the text of its scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", {}))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if tag in ("script", "style"):
            name = attributes.get("id") or tag
            self.texts[name] = self.texts.get(name, "") + data


def parse(page: str) -> Elements:
    elements = Elements()
    elements.feed(page)
    return elements


def data_with(text: str) -> dict[str, Any]:
    return {"runs": [{"name": text}], "file": text, text: 1}


@pytest.mark.parametrize("text", HOSTILE)
def test_data_cannot_end_its_element_and_is_read_back_unchanged(text: str) -> None:
    data = data_with(text)
    elements = parse(render_page(data))
    assert [tag for tag, _ in elements.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in elements.tags]
    assert json.loads(elements.texts["data"]) == data


def test_encoded_data_has_no_markup_and_only_ascii() -> None:
    encoded = encode_data({"texts": HOSTILE})
    assert not set("<>&\u2028\u2029") & set(encoded)
    assert encoded.isascii()
    assert json.loads(encoded) == {"texts": HOSTILE}


def test_a_number_that_json_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_data({"AP": float("nan")})


def test_the_page_names_no_other_address() -> None:
    page = render_page({})
    addresses = set(re.findall(r"[a-z]+://[^\s\"')]*|url\([^)]*\)|@import", page))
    assert addresses == {"http://www.w3.org/2000/svg"}, "the name of SVG, which nobody fetches, is the only one"
    for tag, attributes in parse(page).tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert not {"src", "href", "style"} & attributes.keys()


def test_the_policy_allows_this_script_and_style_and_no_connections() -> None:
    elements = parse(render_page({}))
    [policy] = [attributes["content"] for tag, attributes in elements.tags if "http-equiv" in attributes]
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "connect-src" not in rules
    for rule, name in (("script-src", "script"), ("style-src", "style")):
        digest = hashlib.sha256(elements.texts[name].encode()).digest()
        assert rules[rule] == f"'sha256-{base64.b64encode(digest).decode()}'"


def test_every_script_is_in_the_page() -> None:
    assert sorted(SCRIPTS) == sorted(path.name for path in (PACKAGE / "report" / "page").glob("*.js"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_never_turn_text_into_markup_or_code(script: str) -> None:
    source = (PACKAGE / "report" / "page" / script).read_text(encoding="utf-8")
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser", source
    )
