"""List published weights, and download them by name."""

from __future__ import annotations

import argparse
import os

from posenet.checkpoints.named import NAMED_WEIGHTS, cached_path, fetch_weights
from posenet.cli.logging_setup import print_message
from posenet.cli.options import add_quiet_option
from posenet.errors import ConfigError
from posenet.files import write_atomically
from posenet.messages import to_single_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``weights`` with their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    lister = actions.add_parser("list", help="show all names, with licence, source and file")
    add_quiet_option(lister, default=argparse.SUPPRESS)
    for action, text in (
        ("fetch", "download weights, for later use without a network"),
        ("path", "print where weights are, and download them if they are not on this machine"),
    ):
        names = actions.add_parser(action, help=text)
        names.add_argument("names", nargs="+", metavar="NAME", help="name that posenet weights list shows")
        add_quiet_option(names, default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """List, download or locate weights."""
    if args.action == "list":
        _print_list()
    else:
        _fetch(args.names, path_only=args.action == "path")


def _print_list() -> None:
    for name, entry in NAMED_WEIGHTS.items():
        path = cached_path(name, entry)
        lines = {
            "licence": entry.license,
            "source": entry.source,
            "file": f"{path}{'' if path.is_file() else ' (not downloaded)'}",
        }
        print_message(f"{name}: {to_single_line(entry.description)}")
        for title, text in lines.items():
            print_message(f"    {title:<9}{to_single_line(text)}")


def _fetch(names: list[str], path_only: bool) -> None:
    for name in names:
        if name not in NAMED_WEIGHTS:
            raise ConfigError(f"{name} is not the name of published weights; known: {', '.join(NAMED_WEIGHTS)}")
    for name in names:
        path = fetch_weights(name, NAMED_WEIGHTS[name])
        if path_only:  # for a script
            write_atomically("-", os.fsencode(path) + b"\n")
        else:
            print_message(f"{name} is in {path}")
