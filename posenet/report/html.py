"""The page as one HTML document: the files of ``page/`` and the data, joined so that nothing can break out."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

SCRIPTS = (
    "dom.js", "format.js", "kinds.js", "address.js", "charts.js", "summary.js", "precision.js", "keypoints.js",
    "sensitivity.js", "overlays.js", "gallery.js", "viewer.js", "comparison.js", "help.js", "theme.js", "keys.js",
    "main.js",
)  # fmt: skip
"""The scripts in the order in which they run. They share one scope."""


def render_page(data: Mapping[str, Any]) -> str:
    """Return the document. ``data`` becomes JSON: the scripts show every text in it as text, never as markup."""
    style = "\n" + _read("style.css")
    script = "\n".join(["\n(() => {", '"use strict";', *map(_read, SCRIPTS), "})();\n"])
    # Nothing but this script and this style is allowed, and no connection of any kind.
    policy = (
        f"default-src 'none'; img-src data:; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": encode_data(data)}
    before, *sections = _read("template.html").split("{{")
    page = [before]
    for section in sections:
        name, _, text = section.partition("}}")
        page += [parts[name], text]
    return "".join(page)


def encode_data(data: Mapping[str, Any]) -> str:
    """Return JSON that can stand in a script element: it has no ``<``, ``>`` or ``&``, and only ASCII characters."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _read(name: str) -> str:
    return resources.files("posenet.report").joinpath("page", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The name by which a Content-Security-Policy allows one inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
