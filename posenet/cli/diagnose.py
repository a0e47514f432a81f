"""Diagnose COCO results: which errors cost how much AP, as a report."""

import argparse
import time
from itertools import chain
from pathlib import Path
from typing import TextIO

import posenet
from posenet.annotations.coco import list_image_files
from posenet.cli.main import print_message
from posenet.cli.options import add_overwrite_option, input_files
from posenet.diagnosis.diagnose import Diagnosis, diagnose
from posenet.diagnosis.report import NUMBERS_FILE, REPORT_FILE, write_report
from posenet.files import check_outputs
from posenet.images import require_image_folder
from posenet.messages import pluralize, to_single_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``diagnose``."""
    add = parser.add_argument
    add("--annotations", type=Path, required=True, metavar="JSON", help="COCO keypoint annotations of the images")
    add("--results", type=Path, required=True, metavar="JSON", help="COCO results file, of any network")
    add("--output", type=Path, required=True, metavar="DIR", help="folder for the report")
    add_overwrite_option(parser)
    add("--images", type=Path, metavar="DIR", help="folder of the images for the report (default: none are shown)")
    text = "skeleton file of the results, for its OKS constants (default: coco, or drafted from other annotations)"
    add("--skeleton", metavar="FILE", help=text)


def run(args: argparse.Namespace) -> None:
    """Read and check the results, diagnose them, and write the files."""
    if args.images is not None:
        require_image_folder(args.images)
    images = list_image_files(args.annotations, args.images)
    check_outputs(diagnosis_paths(args.output), chain(input_files(args), images), overwrite=args.overwrite)
    diagnosis = diagnose(args.annotations, args.results, skeleton=args.skeleton, images_dir=args.images)
    provenance = {"Results": str(args.results), "Annotations": str(args.annotations)}
    write_diagnosis(diagnosis, args.images, args.output, provenance)


def diagnosis_paths(folder: Path) -> list[Path]:
    """Paths of the files that ``write_diagnosis`` writes."""
    return [folder / NUMBERS_FILE, folder / REPORT_FILE]


def write_diagnosis(
    diagnosis: Diagnosis,
    images_dir: Path | None,
    folder: Path,
    provenance: dict[str, str],
    messages: TextIO | None = None,
    min_score: float = 0.0,
) -> None:
    """Write all files, and print a summary, also of ``evaluate --report``; for the arguments see ``write_report``."""
    written = f"{time.strftime('%Y-%m-%d %H:%M')} by posenet {posenet.__version__}"
    facts = provenance | {"Images": str(images_dir or "not shown"), "Written": written}
    write_report(diagnosis, folder, images_dir, provenance=facts, min_score=min_score)
    print_message(_summarize(diagnosis), file=messages)
    print_message("wrote " + ", ".join(map(str, diagnosis_paths(folder))), file=messages)


def _summarize(diagnosis: Diagnosis) -> str:
    """What costs the AP, as a few lines."""
    skeleton = diagnosis.matched.skeleton
    missed = skeleton.count(diagnosis.missed_by_threshold[0], "missed")
    lines = [
        f"{diagnosis.name}: AP {diagnosis.ap:.3f}; {skeleton.count(diagnosis.num_people)}, "
        f"{missed} at OKS 0.5, {pluralize(diagnosis.num_results, 'result')}",
        "  keypoints compared: " + ", ".join(f"{count} {kind}" for kind, count in diagnosis.counts.items()),
        "  AP gained by correcting " + ", ".join(f"{kind} {gain:+.3f}" for kind, gain in diagnosis.costs.items()),
        f"  {to_single_line(diagnosis.describe_limit())}",
    ]
    return "\n".join(filter(str.strip, lines))
