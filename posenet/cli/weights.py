"""List published weights and download them by name; convert weights from and to the published format."""

from __future__ import annotations

import argparse

from posenet.checkpoints.named import NAMED_WEIGHTS, cached_path, fetch_weights, find_weights
from posenet.cli.logging_setup import print_message
from posenet.cli.options import (
    CHECKPOINT_HELP,
    add_config_options,
    add_quiet_option,
    add_weights_output,
    input_files,
)
from posenet.errors import ConfigError
from posenet.files import check_outputs
from posenet.messages import pluralize, to_single_line
from posenet.settings import load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``weights`` with their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    lister = actions.add_parser("list", help="show all names, with licence, source and file")
    add_quiet_option(lister, default=argparse.SUPPRESS)
    fetcher = actions.add_parser(
        "fetch", help="download weights, for later use without a network; print where they are"
    )
    fetcher.add_argument("names", nargs="+", metavar="NAME", help="name that posenet weights list shows")
    add_quiet_option(fetcher, default=argparse.SUPPRESS)
    text = "convert a published weights file to a checkpoint of this program, which contains its configuration"
    importer = actions.add_parser("import", help=text, description=text)
    importer.add_argument(
        "weights",
        metavar="FILE",
        help="a published file, such as PoseNet_52_epoch.pth, or the name of published weights",
    )
    add_weights_output(importer)
    add_config_options(importer)
    add_quiet_option(importer, default=argparse.SUPPRESS)
    text = "convert a checkpoint to a file in the published format, which the paper's authors' code reads"
    exporter = actions.add_parser("export", help=text, description=text)
    exporter.add_argument("weights", metavar="FILE", help=CHECKPOINT_HELP)
    add_weights_output(exporter)
    add_quiet_option(exporter, default=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    """List, download or convert weights."""
    if args.action == "list":
        _print_list()
    elif args.action == "fetch":
        _fetch(args.names)
    else:
        _convert(args)


def _print_list() -> None:
    for name, entry in NAMED_WEIGHTS.items():
        path = cached_path(name, entry)
        lines = {
            "licence": entry.license,
            "source": entry.url,
            "file": f"{path}{'' if path.is_file() else ' (not downloaded)'}",
        }
        print_message(f"{name}: {to_single_line(entry.description)}")
        for title, text in lines.items():
            print_message(f"    {title:<9}{to_single_line(text)}")


def _fetch(names: list[str]) -> None:
    for name in names:
        if name not in NAMED_WEIGHTS:
            raise ConfigError(f"{name} is not the name of published weights; known: {', '.join(NAMED_WEIGHTS)}")
    for name in names:
        print_message(f"{name} is in {fetch_weights(name, NAMED_WEIGHTS[name])}")


def _convert(args: argparse.Namespace) -> None:
    check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    find_weights(args.weights)
    # The conversions import PyTorch, which the other actions do not need, and nor does a missing file.
    from posenet.checkpoints.weights import export_weights, import_weights, stored_config

    if args.action == "export":
        export_weights(args.weights, args.output, overwrite=args.overwrite)
        print_message(f"wrote {args.output}")
        return
    config = None
    if args.config:
        config = load_config(args.config, args.overrides)
    elif args.overrides:
        config = load_config(None, args.overrides, base=stored_config(args.weights))
    model = import_weights(args.weights, args.output, config, overwrite=args.overwrite).model
    stacks = pluralize(model.stacks, "stack")
    print_message(f"wrote {args.output}: a network of {stacks}, width {model.width}, growth {model.growth}")
