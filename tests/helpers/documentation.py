"""The documentation pages, their fenced code blocks, and the commands in their shell blocks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.source_files import ROOT

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / folder / "README.md" for folder in ("data", "checkpoints")),
    ]
)

SHELL_VARIABLES = {"SLURM_ARRAY_TASK_ID": "0"}
"""Environment variables that the shell blocks use, as in the first task of a job array."""


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: the first word after the fence; empty if there is none.
        is_run: whether the second word is ``run``.
        line: line number of the opening fence.
    """

    language: str
    is_run: bool
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A simple command of a shell block.

    Attributes:
        piped_from: the words of the command whose output it reads; empty without a pipe.
    """

    words: tuple[str, ...]
    piped_from: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shlex.join(self.words)


def read_blocks(page: Path) -> Iterator[Block]:
    """Read the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        language, _, options = match[1].partition(" ")
        yield Block(language, options == "run", match[2], line=text.count("\n", 0, match.start()) + 1)


def parse_commands(text: str) -> list[Command]:
    """Parse a shell block into simple commands, with variables filled in and loops unrolled.

    The blocks use a small part of the shell language: assignments, ``for`` loops, ``;``, ``&``, ``&&``, pipes, quotes,
    comments, and lines that end in a backslash.
    """
    text = text.replace("\\\n", " ")
    text = re.sub(r"^for (\w+) in ([^;]+); do(.*?)^done", _unroll, text, flags=re.MULTILINE | re.DOTALL)
    variables = dict(SHELL_VARIABLES)
    commands: list[Command] = []
    for line in text.splitlines():
        line = re.sub(r"\$(\w+)", lambda match: variables[match[1]], line)
        for command in _split_line(line):
            assignment = re.fullmatch(r"(\w+)=(.*)", command.words[0])
            if assignment:
                variables[assignment[1]] = assignment[2]
            else:
                commands.append(command)
    return commands


def _unroll(loop: re.Match[str]) -> str:
    """Repeat the body of a ``for`` loop with an assignment of each value."""
    variable, values, body = loop.groups()
    return "\n".join(f"{variable}={value}\n{body}" for value in values.split())


def _split_line(line: str) -> Iterator[Command]:
    """Split a line at ``;``, ``&``, ``&&`` and pipes; shlex removes quotes and comments."""
    tokens = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    tokens.whitespace_split = True
    words: list[str] = []
    piped_from: tuple[str, ...] = ()
    for token in [*tokens, ";"]:
        if token not in (";", "&", "&&", "|"):
            words.append(token)
            continue
        if words and token != "|":
            yield Command(tuple(words), piped_from)
        piped_from = tuple(words) if token == "|" else ()
        words = []
