"""Find the problems of a COCO keypoint file, and how to fix them; exit status 2 if there are errors."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from posenet.annotations.lint.linter import lint_annotations
from posenet.cli.options import add_exif_frame_option
from posenet.errors import DataError
from posenet.messages import pluralize
from posenet.skeleton import load_skeleton


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``lint-annotations``."""
    parser.add_argument("annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="also decode every image and compare its size with the annotated one"
    )
    parser.add_argument(
        "--skeleton",
        metavar="FILE",
        help="compare with this skeleton file, or with coco; by default, with the categories in the file",
    )
    add_exif_frame_option(parser)
    parser.add_argument(
        "--json",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="print the findings as one JSON list, with all places",
    )


def run(args: argparse.Namespace) -> None:
    """Print the findings; fail if there are errors among them."""
    skeleton = None if args.skeleton is None else load_skeleton(args.skeleton)
    if args.images is not None and not args.images.is_dir():
        raise DataError(f"image folder {args.images} does not exist; give the folder of the images")
    findings = lint_annotations(args.annotations, args.images, skeleton, args.exif_frame)
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(finding)
    errors = [finding.code for finding in findings if finding.severity == "error"]
    if errors:
        found = pluralize(len(errors), "kind of error", "kinds of errors")
        raise DataError(f"{args.annotations} has {found} ({', '.join(errors)}); fix them as the findings describe")
    if not args.json:
        found = pluralize(len(findings), "kind of warning", "kinds of warnings")
        print(f"{args.annotations}: no errors, {found}")
