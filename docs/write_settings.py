"""Write settings.md, the page of all settings, from the classes and docstrings of posenet/settings/sections.py."""

import ast
import re
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "posenet" / "settings" / "sections.py"

START = """# Settings

All settings with their defaults. `python docs/write_settings.py` makes this page from `posenet/settings/sections.py`.

An experiment file (TOML) has a table for each section and states only what differs from the defaults.
`--set SECTION.NAME=VALUE` overrides any setting on the command line; some settings also have a flag, such as `--epochs`
for `train.epochs`. [experiments.md](experiments.md) has examples. An unknown name or a value out of range is an
error that names the setting.
"""

TYPES = {
    "str": "text",
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "Share": "number from 0 to 1",
    "OpenShare": "number between 0 and 1",
    "NotNegative": "number, 0 or more",
    "Positive": "number above 0",
    "Count": "whole number, 0 or more",
    "PositiveCount": "whole number above 0",
    "BatchSize": "whole number above 0",
    "Seed": "whole number, 0 or more",
    "Side": "whole number, 64 or more",
    "InputSize": "number or [height, width]",
    "Weights": "list of numbers",
    "CodeName": "text",
    "tuple[float, float]": "two numbers",
    "tuple[float, ...]": "list of numbers",
    "tuple[str, ...]": "list of texts",
    "str | tuple[str, ...]": "path or list of paths",
    "DataSets": "path, or list of paths and tables",
    "Skeleton": "text or table",
    "ExifFrame": "stored, displayed",
    "Switch": "true, false, auto",
}
"""What an annotation of the source means in an experiment file."""


def make_page() -> str:
    """The page, as Markdown."""
    classes = {node.name: node for node in ast.parse(SOURCE.read_text("utf-8")).body if isinstance(node, ast.ClassDef)}
    sections = {name: field.annotation for name, field in _fields(classes["Config"])}
    page = [START]
    for name, annotation in sections.items():
        page.append(_section(classes[ast.unparse(annotation)]))
        if name == "data":
            page.append(_section(classes["DataSetConfig"]))
    return "\n".join(page)


def _section(section: ast.ClassDef) -> str:
    """The heading and the table of one section."""
    title = ast.get_docstring(section) or ""
    lines = [f"## {_markdown(title).rstrip('.')}", "", "| setting | values | default | |", "|---|---|---|---|"]
    docstrings = _docstrings(section)
    for name, field in _fields(section):
        lines.append(f"| `{name}` | {_type(field.annotation)} | {_default(field.value)} | {docstrings[name]} |")
    return "\n".join([*lines, ""])


def _fields(section: ast.ClassDef) -> list[tuple[str, ast.AnnAssign]]:
    fields = [node for node in section.body if isinstance(node, ast.AnnAssign)]
    return [(field.target.id, field) for field in fields if isinstance(field.target, ast.Name)]


def _docstrings(section: ast.ClassDef) -> dict[str, str]:
    """The docstring below each field."""
    docstrings = {}
    for field, text in zip(section.body, section.body[1:]):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            docstrings[ast.unparse(field.target)] = _markdown(ast.literal_eval(text.value))
    return docstrings


def _type(annotation: ast.expr) -> str:
    text = re.sub(r"^Annotated\[(.+?), lambda .*", r"\1", ast.unparse(annotation))
    if "Literal" in text:
        choices = ", ".join(re.findall(r"'(\w+)'", text))
        return f"{choices}, true, false" if "bool" in text else choices
    return TYPES[text]


def _default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Name):
        return f"`{value.id.lower()}`"
    text = str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value or ast.Constant(""))
    text = {"True": "true", "False": "false", "()": "[]"}.get(text, text)
    text = re.sub(r"^\((.+?),?\)$", r"[\1]", text)
    return f"`{text}`" if text else ""


def _markdown(text: str) -> str:
    """One line of Markdown, with links to pages."""
    text = " ".join(text.replace("``", "`").replace("|", "\\|").split())
    return re.sub(r"docs/(\w+\.md)", r"[\1](\1)", text)


if __name__ == "__main__":
    (DOCS / "settings.md").write_text(make_page(), "utf-8")
