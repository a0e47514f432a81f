"""The documentation pages, their fenced code blocks, and the commands in their shell blocks."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.helpers.source_files import ROOT

README_FILES = [ROOT / folder / "README.md" for folder in ("data", "checkpoints")]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *README_FILES])


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block."""

    language: str  # the first word after the fence; empty if there is none
    is_run: bool  # whether the second word is "run"
    text: str
    line: int  # number of the line with the opening fence


class Command(NamedTuple):
    """A simple command of a shell block."""

    words: tuple[str, ...]
    piped_from: tuple[str, ...]  # the words of the command whose output it reads; empty without a pipe

    def __str__(self) -> str:
        return shlex.join(self.words)


def read_blocks(page: Path) -> Iterator[Block]:
    """Read the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        language, _, options = match[1].partition(" ")
        yield Block(language, options == "run", match[2], line=text.count("\n", 0, match.start()) + 1)


def parse_commands(text: str) -> Iterator[Command]:
    """The commands of a shell block, with variables filled in.

    The blocks use a small part of the shell language: assignments, ``;``, ``&``, ``&&``, pipes, quotes, comments, and
    lines that end in a backslash.
    """
    variables: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = re.sub(r"\$(\w+)", lambda match: variables[match[1]], line)
        tokens = shlex.shlex(line, posix=True, punctuation_chars=";&|")  # removes quotes and comments
        tokens.whitespace_split = True
        words: list[str] = []
        piped_from: tuple[str, ...] = ()
        for token in [*tokens, ";"]:
            if token not in (";", "&", "&&", "|"):
                words.append(token)
                continue
            if words and (assignment := re.fullmatch(r"(\w+)=(.*)", words[0])):
                variables[assignment[1]] = assignment[2]
            elif words and token != "|":
                yield Command(tuple(words), piped_from)
            piped_from = tuple(words) if token == "|" else ()
            words = []
