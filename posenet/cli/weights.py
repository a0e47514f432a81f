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
from posenet.cli.predictor_options import requested_config
from posenet.errors import ConfigError
from posenet.files import check_outputs
from posenet.messages import pluralize, to_single_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``weights`` with their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")

    def add_action(name: str, text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        add_quiet_option(action, default=argparse.SUPPRESS)
        return action

    add_action("list", "show all names, with licence, source and file")
    fetcher = add_action("fetch", "download weights, for later use without a network; print where they are")
    fetcher.add_argument("names", nargs="+", metavar="NAME", help="name that posenet weights list shows")
    importer = add_action("import", "convert a published weights file to a checkpoint with its configuration")
    importer.add_argument("weights", metavar="FILE", help="a published file, or the name of published weights")
    add_weights_output(importer)
    add_config_options(importer)
    exporter = add_action("export", "convert a checkpoint to the format of the paper's authors, for their code")
    exporter.add_argument("weights", metavar="FILE", help=CHECKPOINT_HELP)
    add_weights_output(exporter)


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
        path = cached_path(name)
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
        print_message(f"{name} is in {fetch_weights(name)}")


def _convert(args: argparse.Namespace) -> None:
    check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    find_weights(args.weights)
    # The conversions import PyTorch, which the other actions do not need, and nor does a missing file.
    from posenet.checkpoints.weights import export_weights, import_weights

    if args.action == "export":
        export_weights(args.weights, args.output, overwrite=args.overwrite)
        print_message(f"wrote {args.output}")
        return
    config = requested_config(args, args.weights)
    model = import_weights(args.weights, args.output, config, overwrite=args.overwrite).model
    stacks = pluralize(model.stacks, "stack")
    print_message(f"wrote {args.output}: a network of {stacks}, width {model.width}, growth {model.growth}")
