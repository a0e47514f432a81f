"""Flags that several tools share."""

from __future__ import annotations

import argparse


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--set``."""
    parser.add_argument("--config", metavar="FILE", help="experiment file (TOML); see config/README.md")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", dest="overrides",
                        help="override configuration keys, for example model.stacks=2 data.workers=0")


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
