"""Annotation files: list what reading them derives, leaves out and refuses, write them in the normal form, import other
formats, split them, draft a skeleton.

``lint`` and ``fix`` end with status 2 if something contradicts itself. No action changes the file that it reads.
"""

import argparse
import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

from posenet.annotations.coco import list_image_files
from posenet.annotations.find_annotations import find_annotations
from posenet.annotations.reader import read_annotation_file
from posenet.annotations.split import split_annotations
from posenet.cli.main import print_message
from posenet.cli.options import (
    add_action,
    add_config_options,
    add_overwrite_option,
    add_switch,
    fraction,
    input_files,
    message_stream,
)
from posenet.errors import DataError
from posenet.files import check_outputs, is_standard_output, write_atomically
from posenet.images import require_image_folder
from posenet.messages import command_line
from posenet.settings import load_config
from posenet.skeleton import COCO, load_skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``annotations`` and their flags."""
    actions = parser.add_subparsers(required=True, metavar="action", title="actions")

    def declare(name: str, run: Callable[[argparse.Namespace], None], text: str, source: str) -> Any:
        action = add_action(actions, name, text)
        action.set_defaults(run_action=run)
        action.add_argument("source", type=Path, metavar="FILE", help=source)
        return action

    def add_output(action: argparse.ArgumentParser, text: str, **options: Any) -> None:
        action.add_argument("--output", type=Path, metavar="FILE", help=text, **options)
        add_overwrite_option(action)

    coco = "COCO keypoint annotations"
    lint = declare("lint", _check, "list what reading a file derives, leaves out and refuses", coco)
    fix = declare("fix", _check, "write a copy of a file as all tools read it", coco)
    for action in (lint, fix):
        action.set_defaults(output=None, json=False)
        add = action.add_argument
        add("--images", type=Path, metavar="DIR", help="also open every image and compare it with its annotations")
        add("--skeleton", metavar="FILE", help="compare with this skeleton, or coco (default: that in the file)")
        add_config_options(action)
    add_switch(lint, "--json", help="print the list as JSON, with all places")
    add_output(fix, "the file in the normal form", required=True)

    text = "a file, or a folder with the files of one set; see posenet docs formats"
    imported = declare("import", _import, "convert annotations of another format to COCO", text)
    add_output(imported, "the COCO keypoint file", required=True)
    add = imported.add_argument
    add("--split", metavar="NAME", help="YOLO-pose: train, val or test (default: train)")
    add("--images", type=Path, metavar="DIR", help="folder of the images (default: beside the annotations)")

    text = "annotations to draft from; or a skeleton to show (.toml, coco)"
    skeleton = declare("skeleton", _skeleton, "draft a skeleton, or show one", text)
    add_output(skeleton, "the skeleton file (.toml); by default it is printed", default=Path("-"))
    skeleton.add_argument("--category", metavar="NAME", help="the category to describe, if there are several")

    text = "split a COCO keypoint file into parts by a checksum of the images' names"
    split = declare("split", _split, text, coco)
    add_output(split, "the file of each part", required=True, nargs="+")
    add = split.add_argument
    add("--shares", type=fraction, nargs="+", default=[0.9, 0.1], metavar="X", help="of the images (default: 0.9 0.1)")
    add("--images", type=Path, metavar="DIR", help="keep copies of one image file in the same part")


def run(args: argparse.Namespace) -> None:
    """Run the action."""
    args.run_action(args)


def _check(args: argparse.Namespace) -> None:
    """``lint``, and ``fix``, which also writes the normal form."""
    if args.output is not None:
        if is_standard_output(args.output):
            raise DataError("name a file with --output; standard output has the report")
        inputs = chain(input_files(args), list_image_files(args.source, args.images))
        check_outputs([args.output], inputs, overwrite=args.overwrite)
    if args.images is not None:
        require_image_folder(args.images)
    file = read_annotation_file(
        args.source,
        None if args.skeleton is None else load_skeleton(args.skeleton),
        folder=args.images,
        exif_frame=load_config(args.config, args.overrides).data.exif_frame,
        opens_images=args.images is not None,
    )
    adjustments = file.adjustments.sorted()
    if args.json:
        content = json.dumps([dataclasses.asdict(adjustment) for adjustment in adjustments])
        write_atomically("-", f"{content}\n".encode())
    counts = Counter(adjustment.kind for adjustment in adjustments)
    text = ", ".join(f"{count} x {kind}" for kind, count in counts.items()) or "nothing was adjusted"
    for adjustment in adjustments if not args.json else ():
        print_message(adjustment)
    if file.adjustments.contradictions:
        raise DataError(f"{args.source}: {text}; correct what contradicts itself")
    if not args.json:
        print_message(f"{args.source}: {text}")
    if args.output is not None:
        write_atomically(args.output, json.dumps(file.document).encode())
        print_message(f"wrote {args.output}: {file.describe()}")


def _import(args: argparse.Namespace) -> None:
    from posenet.annotations.importing.formats import read_annotations
    from posenet.annotations.importing.yolo_pose import label_path

    output = args.output
    check_outputs([output], input_files(args), overwrite=args.overwrite)
    content, folder, notes = read_annotations(
        find_annotations(args.source, None)[0] if args.source.is_dir() else args.source,
        images=args.images,
        split=args.split,
        frames=None if is_standard_output(output) else output.with_name(f"{output.stem}_frames"),
    )
    file = read_annotation_file(args.source, folder=folder, document=content)
    file.adjustments.refuse(args.source)
    images = [folder / image.file_name for image in file.images]
    check_outputs([output], [*images, *map(label_path, images)], overwrite=args.overwrite)
    write_atomically(output, json.dumps(file.document).encode())
    messages = message_stream(output)
    for line in (file.describe(), *notes, *file.adjustments.sorted()):
        print_message(line, file=messages)
    if not is_standard_output(output):
        print_message(f"wrote {output}; its images are in {folder}")
        words = ["lint", output, "--images", folder]
        if file.categories.parsed[0].keypoints != COCO.file_names:
            words = ["skeleton", output, "--output", output.with_suffix(".toml")]
        print_message(f"next: {command_line('annotations', *words)}")


def _split(args: argparse.Namespace) -> None:
    check_outputs(args.output, input_files(args), overwrite=args.overwrite)
    if len(args.shares) != len(args.output):
        raise DataError(
            f"{len(args.output)} x --output and {len(args.shares)} x --shares; give one share for each file"
        )
    file = read_annotation_file(args.source, folder=args.images)
    file.adjustments.refuse(args.source)
    messages = message_stream(*args.output)
    for adjustment in file.adjustments.sorted():
        print_message(adjustment, file=messages)
    for output, part in zip(args.output, split_annotations(file, args.shares, args.images)):
        write_atomically(output, json.dumps(part.document).encode())
        print_message(f"wrote {output}: {part.describe()}", file=messages)


def _skeleton(args: argparse.Namespace) -> None:
    check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    comments = {}
    if str(args.source) == BUILT_IN or args.source.suffix.lower() == ".toml":
        skeleton = load_skeleton(args.source)
    else:
        from posenet.annotations.skeleton_draft import COMMENTS, draft_skeleton  # a part that may be left out

        skeleton, comments = draft_skeleton(args.source, args.category), COMMENTS
    write_atomically(args.output, skeleton_to_toml(skeleton, comments).encode())
    if not is_standard_output(args.output):
        use = f"build-hdf5 --skeleton {args.output} and train --set model.skeleton={args.output}"
        print_message(f"wrote {args.output}; check it, then give it: {use}")
