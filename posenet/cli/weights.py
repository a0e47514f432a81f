"""List the weights that have names, download them, or print where they are; see docs/weights.md."""

from __future__ import annotations

import argparse

from posenet.checkpoints.named_weights import cached_path, fetch_weights
from posenet.checkpoints.registry import RegisteredWeights, read_registries
from posenet.errors import ConfigError
from posenet.messages import to_single_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the subcommands of ``weights``."""
    subparsers = parser.add_subparsers(dest="action", required=True, metavar="action")
    actions = {
        "list": "show all names, with licence, source, file and keypoints",
        "fetch": "download weights, so that they can be used without a connection",
        "path": "print the path of weights, which are downloaded if they are not on this machine",
    }
    for action, text in actions.items():
        subparser = subparsers.add_parser(action, help=text, description=text, formatter_class=parser.formatter_class)
        if action == "fetch":
            subparser.add_argument("names", nargs="+", metavar="NAME", help="names of registered weights")
        if action == "path":
            subparser.add_argument("names", nargs=1, metavar="NAME", help="name of registered weights")


def run(args: argparse.Namespace) -> None:
    """List, download or locate weights."""
    registered = read_registries()
    if args.action == "list":
        _print_list(registered)
        return
    for name in args.names:
        if name not in registered:
            raise ConfigError(f"{name} is not the name of registered weights; known: {', '.join(registered)}")
    for name in args.names:
        path = fetch_weights(registered[name])
        print(path if args.action == "path" else f"{name} is in {path}")


def _print_list(registered: dict[str, RegisteredWeights]) -> None:
    for entry in registered.values():
        path = cached_path(entry)
        config = entry.config()
        lines = {
            "licence": entry.license,
            "source": entry.source,
            "file": f"{path}{'' if path.is_file() else ' (not downloaded)'}",
            "keypoints": ", ".join(config.model.skeleton.keypoints) if config else "as in the file",
            "registry": str(entry.registry),
        }
        print(f"{entry.name}: {to_single_line(entry.description)}")
        for title, text in lines.items():
            print(f"    {title:<11}{to_single_line(text)}")
