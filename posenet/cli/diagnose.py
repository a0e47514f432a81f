"""Diagnose COCO results: which errors cost how much AP, as a report."""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path

from posenet.annotations.coco import list_image_files
from posenet.cli.diagnosis_outputs import diagnosis_paths, write_diagnosis
from posenet.cli.options import add_overwrite_option, input_files
from posenet.diagnosis.diagnose import diagnose
from posenet.files import check_outputs
from posenet.images import require_image_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``diagnose``."""
    parser.add_argument(
        "--annotations", type=Path, required=True, metavar="JSON", help="COCO keypoint annotations of the images"
    )
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        metavar="JSON",
        help="COCO results file, of any network",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the report")
    add_overwrite_option(parser)
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="folder of the images for the report (default: none are shown)"
    )
    parser.add_argument(
        "--skeleton",
        metavar="FILE",
        help="skeleton file of the results, for its OKS constants (default: coco, or drafted from other annotations)",
    )


def run(args: argparse.Namespace) -> None:
    """Read and check the results, diagnose them, and write the files."""
    if args.images is not None:
        require_image_folder(args.images)
    images = list_image_files(args.annotations, args.images)
    check_outputs(diagnosis_paths(args.output), chain(input_files(args), images), overwrite=args.overwrite)
    diagnosis = diagnose(args.annotations, args.results, skeleton=args.skeleton, images_dir=args.images)
    provenance = {"Results": str(args.results), "Annotations": str(args.annotations)}
    write_diagnosis(diagnosis, args.images, args.output, sys.stdout, provenance=provenance)
