"""Find the problems of a COCO keypoint file, and how to fix them; exit status 2 if there are errors.

With --fix, write a repaired copy first: everything that other values or the image files determine. The findings are
then those of the copy. The file itself is never changed, and no keypoint is added.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TextIO

from posenet.annotations.rules import fix_annotations, lint_annotations
from posenet.cli.options import SWITCH, add_exif_frame_option, check_output_file, select_exif_frame
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
    parser.add_argument(
        "--fix",
        type=Path,
        metavar="OUT.json",
        help="write a repaired copy here: ids, sizes and file names (with --images), visibilities 0 and 1, keypoints a "
        "pixel outside, missing boxes, areas, iscrowd and num_keypoints; see docs/labelling_tools.md",
    )
    parser.add_argument("--overwrite", **SWITCH, help="replace an existing OUT.json")
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
    exif_frame = select_exif_frame(args)
    path = args.annotations
    if args.fix is not None:
        check_output_file(args.fix, path, args.overwrite)
        fixes = fix_annotations(path, args.fix, args.images, exif_frame)
        _print_fixes(fixes, args.fix, sys.stderr if args.json else sys.stdout)
        path = args.fix
    findings = lint_annotations(path, args.images, skeleton, exif_frame)
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(finding)
    errors = [finding.code for finding in findings if finding.severity == "error"]
    if errors:
        found = pluralize(len(errors), "kind of error", "kinds of errors")
        remedy = "fix them as the findings describe"
        if args.fix is None:
            remedy += ", after --fix OUT.json has repaired what can be derived"
        raise DataError(f"{path} has {found} ({', '.join(errors)}); {remedy}")
    if not args.json:
        found = pluralize(len(findings), "kind of warning", "kinds of warnings")
        print(f"{path}: no errors, {found}")


def _print_fixes(fixes: dict[str, int], output: Path, messages: TextIO) -> None:
    for kind, count in fixes.items():
        print(f"fixed {kind}: {count}", file=messages)
    if not fixes:
        print("nothing to fix", file=messages)
    print(f"wrote {output}", file=messages)
