"""List published weights and download them by name; convert weights from and to the published format."""

import argparse

from posenet.checkpoints.file import find_weights
from posenet.checkpoints.published.weights import NAMED_WEIGHTS, cached_path
from posenet.cli.main import print_message
from posenet.cli.options import (
    CHECKPOINT_HELP,
    add_action,
    add_config_options,
    add_overwrite_option,
    requested_config,
)
from posenet.messages import pluralize, to_single_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``weights`` with their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    add_action(actions, "list", "show all names, with licence, source and file")
    fetcher = add_action(actions, "fetch", "download weights, for later use without a network; print where they are")
    fetcher.add_argument("names", nargs="+", metavar="NAME", help="name that posenet weights list shows")
    importer = add_action(actions, "import", "convert a published weights file to a checkpoint with its configuration")
    importer.add_argument("weights", metavar="FILE", help="a published file, or the name of published weights")
    add_config_options(importer)
    text = "convert a checkpoint to the format of the paper's authors, for their code"
    exporter = add_action(actions, "export", text)
    exporter.add_argument("weights", metavar="FILE", help=CHECKPOINT_HELP)
    for action in (importer, exporter):
        action.add_argument("--output", required=True, metavar="FILE.pth", help="file to write")
        add_overwrite_option(action)


def run(args: argparse.Namespace) -> None:
    """List, download or convert weights."""
    if args.action == "list":
        for name, entry in NAMED_WEIGHTS.items():
            path = cached_path(name)
            print_message(f"{name}: {to_single_line(entry.description)}")
            print_message(f"    licence  {to_single_line(entry.license)}")
            print_message(f"    source   {to_single_line(entry.url)}")
            print_message(f"    file     {path}{'' if path.is_file() else ' (not downloaded)'}")
    elif args.action == "fetch":
        for name in args.names:
            print_message(f"{name} is in {find_weights(name)}")
    else:
        _convert(args)


def _convert(args: argparse.Namespace) -> None:
    find_weights(args.weights)
    # The conversions import PyTorch, which the other actions do not need, and nor does a missing file.
    from posenet.checkpoints.published.convert import export_weights, import_weights

    if args.action == "export":
        export_weights(args.weights, args.output, overwrite=args.overwrite)
        print_message(f"wrote {args.output}")
        return
    config = requested_config(args, args.weights)
    model = import_weights(args.weights, args.output, config, overwrite=args.overwrite).model
    stacks = pluralize(model.stacks, "stack")
    print_message(f"wrote {args.output}: a network of {stacks}, width {model.width}, growth {model.growth}")
