"""Draft a skeleton file from annotations, check one, or write the built-in one.

Prints the content of the skeleton, and writes a TOML file with comments on what to check.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from posenet.annotations.skeleton_draft import draft_skeleton
from posenet.cli.options import check_output_file, message_stream
from posenet.files import write_atomically
from posenet.messages import to_single_line
from posenet.skeleton import Skeleton, load_skeleton
from posenet.skeleton.skeleton_file import skeleton_to_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``skeleton``."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--from-annotations", type=Path, metavar="JSON", help="draft from this COCO keypoint file")
    source.add_argument("--show", metavar="FILE", help="check this skeleton file; coco is the built-in one")
    parser.add_argument(
        "--category", metavar="NAME", help="the category to describe (default: the only one with keypoints)"
    )
    parser.add_argument(
        "--bridges",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also draft parts between keypoints that are two parts apart, which help the decoder",
    )
    parser.add_argument("--output", type=Path, metavar="FILE.toml", help="write the skeleton here")
    parser.add_argument(
        "--overwrite", action=argparse.BooleanOptionalAction, default=False, help="replace an existing file"
    )


def run(args: argparse.Namespace) -> None:
    """Describe the skeleton, and write it if ``--output`` is given."""
    messages = message_stream(args.output)
    comments = {}
    if args.show:
        skeleton = load_skeleton(args.show)
    else:
        draft = draft_skeleton(args.from_annotations, args.category, args.bridges)
        skeleton = draft.skeleton
        comments = draft.comments
        print(f"category    {to_single_line(draft.category)}", file=messages)
    _print_skeleton(skeleton, messages)
    if args.output is None:
        return
    check_output_file(args.output, Path(args.show or args.from_annotations), args.overwrite)
    write_atomically(args.output, skeleton_to_toml(skeleton, comments).encode())
    print(
        f"wrote {args.output}; check it, then pass it to build-hdf5 and lint-annotations with --skeleton and to "
        f"train with --set model.skeleton={args.output}",
        file=messages,
    )


def _print_skeleton(skeleton: Skeleton, messages: TextIO) -> None:
    lines = {
        "keypoints": f"{skeleton.num_keypoints}: {', '.join(skeleton.keypoints)}",
        "parts": f"{skeleton.num_parts}: {', '.join('-'.join(part) for part in skeleton.parts)}",
        "left-right": ", ".join("-".join(pair) for pair in skeleton.left_right) or "none",
        "derived": ", ".join(f"{name} between {a} and {b}" for name, (a, b) in skeleton.derived.items()) or "none",
        "layout": "known" if skeleton.layout else "not known",
        "channels": str(skeleton.num_channels),
    }
    for name, text in lines.items():
        print(f"{name:<12}{to_single_line(text)}", file=messages)
