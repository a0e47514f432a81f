"""List the weights that have names, download them, or print where they are; see docs/weights.md."""

from __future__ import annotations

import argparse

from posenet.checkpoints.named_weights import cached_path, fetch_weights
from posenet.checkpoints.registry import RegisteredWeights, read_registries
from posenet.errors import ConfigError
from posenet.messages import to_single_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``weights``."""
    parser.add_argument(
        "action",
        choices=["list", "fetch", "path"],
        help="list: show all names, with licence, source, file and keypoints; fetch: download weights, for later use "
        "without a network; path: print where weights are, and download them if they are not on this machine",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names of weights, for fetch and path")


def run(args: argparse.Namespace) -> None:
    """List, download or locate weights."""
    registered = read_registries()
    if args.action == "list":
        _print_list(registered)
        return
    if not args.names:
        raise ConfigError(f"{args.action} needs a name; known: {', '.join(registered)}")
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
