"""Flags and argument types that several tools share."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from posenet.errors import DataError
from posenet.files import is_standard_output, read_input
from posenet.settings import Config

ArgumentContainer = Any
"""A parser, or a group of one; argparse has no public name for groups."""

MAX_MINUTES = 100_000.0
"""The longest time-out, ten weeks."""


_INPUTS = (
    "inputs source checkpoint weights config annotations results images image_ids skeleton calibrate from_annotations"
).split()
"""Names of the arguments that are paths of inputs."""


def add_switch(
    container: ArgumentContainer, name: str, *, help: str, default: Any = False, dest: str = "", short: str = ""
) -> None:
    """Declare a flag that is on or off. Where its default is that of a setting, ``--no-...`` turns it off."""
    container.add_argument(
        *filter(None, [short, name]),
        dest=dest or name.lstrip("-").replace("-", "_"),
        action="store_true" if default is False else argparse.BooleanOptionalAction,
        default=default,
        help=help,
    )


def add_quiet_option(parser: argparse.ArgumentParser, default: Any = False) -> None:
    """Declare ``--quiet``. Actions of a tool declare it too, with ``argparse.SUPPRESS`` as the default."""
    add_switch(parser, "--quiet", default=default, help="show no progress, and only warnings and errors")


def describe_default(value: object) -> str:
    """The default of a flag or a setting as help texts show it: ``512``, ``on``, ``0.5 1 2``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(describe_default, value)) or "none"
    return str(value) or "none"


def setting_help(text: str, key: str, of_checkpoint: bool = False) -> str:
    """The help of a flag that overrides a setting: the text, the key of the setting, and its default.

    With ``of_checkpoint``, the setting in the checkpoint comes before the default of the program.
    """
    section, _, name = key.partition(".")
    default = describe_default(getattr(getattr(Config(), section), name))
    stated = f"that of the checkpoint, or {default}" if of_checkpoint else default
    return f"{text} ({key}; default: {stated})"


CHECKPOINT_HELP = "checkpoint of a run, a published one, or a name that posenet weights list shows"
"""Help of a flag that accepts any weights."""


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--config`` and ``--set``."""
    parser.add_argument("--config", metavar="NAME", help="experiment: a name that posenet config lists, or a TOML file")
    parser.add_argument(
        "--set",
        type=key_and_value,
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override settings, one or more, for example model.stacks=2 data.workers=0",
    )


def add_weights_output(parser: argparse.ArgumentParser) -> None:
    """Declare ``--output`` and ``--overwrite`` of the tools that convert weights."""
    parser.add_argument("--output", required=True, metavar="FILE.pth", help="file to write")
    add_overwrite_option(parser)


def add_overwrite_option(container: ArgumentContainer) -> None:
    """Declare ``--overwrite``; see ``posenet.files.check_outputs``."""
    add_switch(container, "--overwrite", help="replace existing outputs; an input is never replaced")


def message_stream(*outputs: str | Path | None) -> TextIO:
    """Where a tool prints its messages: standard error if one of its outputs is standard output."""
    return sys.stderr if any(output is not None and is_standard_output(output) for output in outputs) else sys.stdout


def input_files(args: argparse.Namespace) -> Iterator[Path | int]:
    """Every file that a flag may name as an input, those in ``--set`` included; also names that are no files.

    ``-`` is standard input, descriptor 0. So no output replaces an input.
    """
    for name in _INPUTS:
        value = getattr(args, name, None)
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, (str, Path)):
                yield 0 if word == "-" else Path(word)
    for pair in getattr(args, "overrides", ()):
        yield Path(pair.partition("=")[2].strip(" '\""))


def with_dashes(argv: Sequence[str]) -> list[str]:
    """The words of a command line with ``-`` in place of ``_`` in names of flags, up to a lone ``--``."""
    end = argv.index("--") if "--" in argv else len(argv)
    pairs = (word.partition("=") if word.startswith("--") else ("", "", word) for word in argv[:end])
    return [name.replace("_", "-") + equals + value for name, equals, value in pairs] + list(argv[end:])


def key_and_value(text: str) -> str:
    """Argument type: ``KEY=VALUE``."""
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE; inputs come first")
    return text


def scale(text: str) -> float:
    """Argument type: an inference scale."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a scale; inputs come first") from None


def _number(kind: type[int] | type[float], low: float, high: float = math.inf) -> Callable[[str], float]:
    """Argument type: a number from ``low`` to ``high``."""

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            limits = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return value

    parse.__name__ = kind.__name__  # for "invalid int value"
    return parse


positive_int = _number(int, 1)
non_negative_int = _number(int, 0)
fraction = _number(float, 0, 1)
seconds = _number(float, 0)
minutes = _number(float, 1e-9, MAX_MINUTES)


def add_image_ids(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare ``--image-ids``, which ``read_image_ids`` reads."""
    parser.add_argument("--image-ids", nargs="+", metavar="ID", help=text)


def read_image_ids(words: list[str] | None) -> set[int] | None:
    """Parse image ids: ``words`` are the ids, or one text file with ids separated by spaces, commas or line ends."""
    if words is None:
        return None
    given = " ".join(words)
    try:
        if len(words) == 1 and not given.lstrip("-").isdecimal():
            words = read_input(given).decode("utf-8-sig").replace(",", " ").split()
        return {int(word) for word in words}
    except OSError as error:
        raise DataError(f"cannot read image ids from {given}; give ids or a text file of ids") from error
    except ValueError as error:
        raise DataError(f"--image-ids {given[:100]}: {error}; image ids are whole numbers") from error
