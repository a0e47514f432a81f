"""Diagnose COCO results: which errors cost how much AP, as a report; and compare several results."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from posenet.annotations.reading import read_split
from posenet.cli.diagnosis_outputs import diagnosis_paths, write_diagnosis
from posenet.cli.options import add_exif_frame_option, select_exif_frame
from posenet.cli.predictor_options import add_predictor_options, make_predictor
from posenet.diagnosis.diagnose import diagnose_results, require_people
from posenet.diagnosis.perfect_grouping import evaluate_perfect_grouping
from posenet.diagnosis.results_file import read_results
from posenet.errors import ConfigError, DataError
from posenet.files import check_outputs
from posenet.skeleton import load_skeleton
from posenet.skeleton.skeleton_file import BUILT_IN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``diagnose``."""
    parser.add_argument(
        "--annotations", type=Path, required=True, metavar="JSON", help="COCO keypoint annotations of the images"
    )
    parser.add_argument(
        "--results",
        type=Path,
        required=True,
        nargs="+",
        action="extend",
        metavar="JSON",
        help="COCO results files, of any network; the others are compared with the first",
    )
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="folder of the images for the report (default: none are shown)"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder for the report")
    parser.add_argument(
        "--skeleton",
        metavar="FILE",
        help=f"skeleton file, or {BUILT_IN} (default: that of the checkpoint, or {BUILT_IN})",
    )
    add_predictor_options(
        parser,
        amp="off",
        checkpoint_help="network of the first results, to evaluate its keypoint candidates as the annotations group "
        "them; needs --images (default: none). The flags below belong to it",
        required=False,
    )
    add_exif_frame_option(parser, of_checkpoint=True)


def run(args: argparse.Namespace) -> None:
    """Read and check all results, diagnose each, and write the files."""
    if args.images is not None and not args.images.is_dir():
        raise DataError(f"image folder {args.images} does not exist; give the folder of the images")
    if args.checkpoint and args.images is None:
        raise ConfigError("--checkpoint needs the images of the annotations; add --images")
    inputs = [args.annotations, *args.results] + ([Path(args.checkpoint)] if args.checkpoint else [])
    check_outputs(diagnosis_paths(args.output), inputs)
    predictor, config = make_predictor(args, parallel=True) if args.checkpoint else (None, None)
    exif_frame = select_exif_frame(args, config)
    if args.skeleton is not None:
        skeleton = load_skeleton(args.skeleton)
    else:
        skeleton = load_skeleton(BUILT_IN) if predictor is None else predictor.skeleton
    if predictor is not None and not predictor.skeleton.predicts_like(skeleton):
        raise ConfigError(f"{args.checkpoint} has other keypoints than {args.skeleton}; leave out --skeleton")
    split = read_split(args.annotations, None, skeleton)
    require_people(split, args.annotations)
    files = [read_results(path, split, skeleton) for path in args.results]
    diagnoses = [
        diagnose_results(file, split, skeleton, name) for file, name in zip(files, distinct_names(args.results))
    ]
    if predictor is not None:
        metrics = evaluate_perfect_grouping(predictor, args.images, args.annotations, split, exif_frame=exif_frame)
        diagnoses[0] = dataclasses.replace(diagnoses[0], perfect_grouping=metrics)
    write_diagnosis(diagnoses, args.images, args.output, exif_frame, sys.stdout)


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The names of files; their paths where names are the same, and numbered where paths are."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [
        f"{name} ({names[:index].count(name) + 1})" if name in names[:index] else name
        for index, name in enumerate(names)
    ]
