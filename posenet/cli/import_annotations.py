"""Convert annotations of another format to a COCO keypoint file: YOLO-pose, or tasks of Label Studio.

The input is the data.yaml of a YOLO-pose data set, or the JSON export of Label Studio (not its COCO export, which joins
all people of an image).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from posenet.annotations.importing.imported import ImportedAnnotations
from posenet.annotations.importing.label_studio import import_label_studio
from posenet.annotations.importing.yolo_pose import import_yolo_pose
from posenet.cli.options import SWITCH, check_output_file, message_stream
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.messages import pluralize


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``import-annotations``."""
    add = parser.add_argument
    add("source", type=Path, metavar="FILE", help="data.yaml (YOLO-pose) or .json (JSON export of Label Studio)")
    add("--output", type=Path, required=True, metavar="JSON", help="the COCO keypoint file to write")
    add("--split", default="train", metavar="NAME", help="YOLO-pose: train, val or test")
    add("--images", type=Path, metavar="DIR", help="Label Studio: folder of the images, at any depth")
    add(
        "--keypoints",
        nargs="+",
        metavar="NAME",
        help="names of the keypoints in order (default: those in the file, or COCO's where they fit)",
    )
    add("--overwrite", **SWITCH, help="replace an existing file")


def run(args: argparse.Namespace) -> None:
    """Convert the file and print counts and the folder of the images."""
    check_output_file(args.output, args.source, args.overwrite)
    imported = _import(args)
    try:
        write_atomically(args.output, json.dumps(imported.document).encode())
    except OSError as error:
        raise DataError(f"cannot write {args.output}: {error.strerror or error}; choose another output") from error
    messages = message_stream(args.output)
    document = imported.document
    people = pluralize(len(document["annotations"]), "person", "people")
    print(f"{pluralize(len(document['images']), 'image')}, {people}", file=messages)
    for note in imported.notes:
        print(note, file=messages)
    print(f"wrote {args.output}; its images are in {imported.folder}", file=messages)
    print(f"next: posenet lint-annotations {args.output} --images {imported.folder}", file=messages)


def _import(args: argparse.Namespace) -> ImportedAnnotations:
    if args.source.suffix.lower() in (".yaml", ".yml"):
        return import_yolo_pose(args.source, args.split, args.keypoints)
    if args.source.suffix.lower() != ".json":
        raise DataError(
            f"{args.source} is neither a data.yaml (YOLO-pose) nor a .json (Label Studio); give one of them"
        )
    if args.images is None:
        raise DataError("name the folder of the images with --images")
    return import_label_studio(args.source, args.images, args.keypoints)
