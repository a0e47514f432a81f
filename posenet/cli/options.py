"""Flags that several tools share."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.errors import DataError


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--set``."""
    parser.add_argument("--config", metavar="FILE", help="experiment file (TOML); see config/README.md")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override configuration keys, for example model.stacks=2 data.workers=0",
    )


def add_weights_output(parser: argparse.ArgumentParser) -> None:
    """``--output`` and ``--overwrite`` of the tools that convert weights."""
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.pth", help="the file to write")
    parser.add_argument(
        "--overwrite", action=argparse.BooleanOptionalAction, default=False, help="replace an existing file"
    )


def check_new(output: Path, source: Path, overwrite: bool) -> None:
    """Refuse to replace a file without being asked to, and the input altogether."""
    if output.exists() and output.resolve() == source.resolve():
        raise DataError(f"writing {output} would replace the input; choose another name")
    if output.is_dir():
        raise DataError(f"{output} is a folder; give the name of a file")
    if output.exists() and not overwrite:
        raise DataError(f"{output} exists; choose another name, or replace it with --overwrite")


def positive(text: str) -> int:
    """Argument type: a whole number from 1 up."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def natural(text: str) -> int:
    """Argument type: a whole number from 0 up."""
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def share(text: str) -> float:
    """Argument type: a number from 0 to 1."""
    if not 0 <= (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return value


def read_image_ids(words: list[str]) -> set[int]:
    """Ids given one by one, or in one text file between spaces, commas or line ends."""
    source = ""
    if len(words) == 1 and not words[0].lstrip("-").isdecimal():
        source = f"{words[0]}: "
        try:
            words = Path(words[0]).read_text(encoding="utf-8").replace(",", " ").split()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read image ids from {words[0]}; give ids or a text file of ids") from error
    try:
        return {int(word) for word in words}
    except ValueError as error:
        raise DataError(f"{source}{error}; image ids are whole numbers") from error
