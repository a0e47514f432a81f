"""Annotation files: find their problems, repair them, import other formats, merge and split them, draft a skeleton.

``lint`` and ``fix`` end with status 2 if there are errors. No action changes the file that it reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from posenet.annotations.coco import describe_counts, write_output
from posenet.annotations.importing.coco_family import PARTS
from posenet.annotations.importing.formats import COCO_FAMILY, Options, read_source, recognise
from posenet.annotations.importing.imported import ImportedAnnotations
from posenet.annotations.importing.yolo_pose import label_path
from posenet.annotations.outlines import SHARE_OF_BOX, SHARE_OF_KEYPOINT_BOX
from posenet.annotations.rules import fix_annotations, lint_annotations, list_errors
from posenet.annotations.skeleton_draft import draft_skeleton
from posenet.annotations.split_and_merge import merge_annotations, select_images, split_annotations
from posenet.cli.logging_setup import print_message
from posenet.cli.options import (
    add_config_options,
    add_overwrite_option,
    add_quiet_option,
    add_switch,
    fraction,
    input_files,
    message_stream,
    non_negative_int,
    positive_int,
    read_image_ids,
)
from posenet.data.store import Store
from posenet.errors import DataError
from posenet.files import check_outputs, is_standard_output, write_atomically
from posenet.images import require_image_folder
from posenet.messages import command_line, pluralize, to_single_line
from posenet.settings import load_config
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the actions of ``annotations`` and their flags."""
    actions = parser.add_subparsers(required=True, metavar="action", title="actions")

    def add_action(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text, formatter_class=parser.formatter_class)
        action.set_defaults(run_action=run)
        add_quiet_option(action, default=argparse.SUPPRESS)
        return action

    lint = add_action("lint", _lint, "find the problems of a COCO keypoint file, and how to fix them")
    fix = add_action(
        "fix",
        _fix,
        "write a copy of a COCO keypoint file in which everything is repaired that other values or the image files "
        "determine, and lint it",
    )
    for action in (lint, fix):
        add = action.add_argument
        add("annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
        add("--images", type=Path, metavar="DIR", help="also open every image and compare it with its annotations")
        add(
            "--skeleton",
            metavar="FILE",
            help="compare with this skeleton file, or with coco; by default, with the categories in the file",
        )
        add_switch(action, "--json", help="print the findings as one JSON list, with all places")
        add_config_options(action)
    add_switch(
        fix,
        "--drop",
        help="leave out what cannot be repaired, and name it: images, annotations, or the keypoints of an annotation, "
        "whose place training then ignores",
    )
    imported = add_action("import", _import, "convert annotations of another tool or data set to COCO")
    add = imported.add_argument
    add(
        "source",
        type=Path,
        metavar="PATH",
        help="a file, or a folder with the files of one set; see posenet docs formats",
    )
    add("--split", nargs="+", metavar="NAME", help="YOLO-pose: train, val or test, or several (default: train)")
    add(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder of the images, at any depth (default: beside the annotations)",
    )
    add("--part", choices=PARTS, help="COCO-WholeBody: read only these keypoints (default: all 133)")
    add(
        "--keypoints",
        action="append",
        metavar="NAME",
        help="names of the keypoints in order (default: those in the file, or COCO's where they fit)",
    )
    skeleton = add_action("skeleton", _skeleton, "draft a skeleton from annotations, or show and check one")
    add = skeleton.add_argument
    add(
        "source",
        metavar="FILE",
        help="annotations (.json) to draft from; or, to show, a skeleton file (.toml), coco, or the skeleton in a "
        "store (.h5) or a checkpoint (.pth)",
    )
    add("--category", metavar="NAME", help="the category to describe (default: the only one with keypoints)")
    merge = add_action("merge", _merge, "merge COCO keypoint files with the same keypoints; ids are numbered anew")
    add = merge.add_argument
    add("annotations", type=Path, nargs="+", metavar="JSON", help="COCO keypoint annotations")
    add(
        "--images",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="the folder of the images of each file, if these are different folders",
    )
    split = add_action("split", _split, "split a COCO keypoint file at random into parts; no image is in two")
    add = split.add_argument
    add("annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    add(
        "--shares",
        type=fraction,
        nargs="+",
        default=[0.9, 0.1],
        metavar="X",
        help="share of the images of each part (default: 0.9 0.1)",
    )
    add("--images", type=Path, metavar="DIR", help="keep copies of one image file in the same part")
    subset = add_action("subset", _subset, "reduce a COCO keypoint file to some of its images")
    subset.add_argument("annotations", type=Path, metavar="JSON", help="COCO keypoint annotations")
    group = subset.add_mutually_exclusive_group(required=True)
    group.add_argument("--image-ids", nargs="+", metavar="ID", help="ids, or a text file with them")
    group.add_argument("--number", type=positive_int, metavar="N", help="number of images, drawn at random")
    for action in (split, subset):
        action.add_argument("--seed", type=non_negative_int, default=0, metavar="N", help="draw other images")
    outputs = {
        fix: "the repaired file",
        imported: "the COCO keypoint file; with several splits, the name of each is added to it",
        merge: "the merged file",
        split: "the file of each part",
        subset: "the smaller file",
        skeleton: "the skeleton file (.toml)",
    }
    for action, text in outputs.items():
        number = {"nargs": "+"} if action is split else {}
        required = action is not skeleton
        action.add_argument("--output", type=Path, required=required, metavar="FILE", help=f"{text} to write", **number)
        add_overwrite_option(action)


def run(args: argparse.Namespace) -> None:
    """Run the action."""
    args.run_action(args)


def _lint(args: argparse.Namespace) -> None:
    _print_findings(args, args.annotations)


def _fix(args: argparse.Namespace) -> None:
    check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    exif_frame = load_config(args.config, args.overrides).data.exif_frame
    repairs = fix_annotations(
        args.annotations, args.output, args.images, exif_frame, drop=args.drop, overwrite=args.overwrite
    )
    messages = sys.stderr if args.json else sys.stdout
    for kind, count in repairs.counts.items():
        print_message(f"fixed {kind}: {count}", file=messages)
    for finding in repairs.left_out:
        print_message(f"left out {len(finding.places)}: {finding.summary}", file=messages)
    if not any(repairs):
        print_message("nothing to repair", file=messages)
    print_message(f"wrote {args.output}", file=messages)
    _print_findings(args, args.output, is_fixed=True)


def _print_findings(args: argparse.Namespace, path: Path, is_fixed: bool = False) -> None:
    """Print the findings of a file, which ``fix`` may have written; ``DataError`` if there are errors."""
    if args.images is not None:
        require_image_folder(args.images)
    skeleton = None if args.skeleton is None else load_skeleton(args.skeleton)
    exif_frame = load_config(args.config, args.overrides).data.exif_frame
    findings = lint_annotations(path, args.images, skeleton, exif_frame)
    if args.json:
        text = json.dumps([dataclasses.asdict(finding) for finding in findings])
        write_atomically("-", f"{text}\n".encode())
    else:
        for finding in findings:
            print_message(finding)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        remedy = "fix them as the findings describe"
        if not is_fixed and any(finding.can_repair for finding in errors):
            remedy += ", after posenet annotations fix has repaired what it can"
        if not (is_fixed and args.drop) and any(finding.can_drop for finding in errors):
            remedy += "; posenet annotations fix --drop leaves out single entries that cannot be repaired"
        raise DataError(f"{list_errors(path, errors)}; {remedy}")
    if not args.json:
        warnings = pluralize(len(findings), "kind of warning", "kinds of warnings") if findings else "no warnings"
        print_message(f"{path}: no errors, {warnings}")


def _import(args: argparse.Namespace) -> None:
    output, splits = args.output, args.split or ["train"]
    if len(splits) > 1 and is_standard_output(output):
        raise DataError(f"{len(splits)} splits do not fit into standard output; name a file with --output")
    outputs = [output] if len(splits) == 1 else [output.with_stem(f"{output.stem}_{split}") for split in splits]
    check_outputs(outputs, input_files(args), overwrite=args.overwrite)
    format_, source = recognise(args.source)
    if args.split is not None and not format_.has_splits:
        raise DataError(
            f"{args.source} has no splits, which only YOLO-pose has; leave out --split, and divide the imported file "
            "with posenet annotations split"
        )
    for split, path in zip(splits, outputs):
        frames = None if is_standard_output(path) else path.with_name(f"{path.stem}_frames")
        options = Options(args.images, split, args.keypoints, args.part, frames)
        _write_imported(args, path, read_source(format_, source, options), format_.name != COCO_FAMILY)


def _write_imported(args: argparse.Namespace, output: Path, imported: ImportedAnnotations, has_estimates: bool) -> None:
    document, folder, notes = imported
    images = [folder / image["file_name"] for image in document["images"]]
    check_outputs([output], [*images, *map(label_path, images)], overwrite=args.overwrite)
    write_output(output, json.dumps(document))
    messages = message_stream(output)
    print_message(describe_counts(document), file=messages)
    for note in notes:
        print_message(note, file=messages)
    if document["annotations"] and has_estimates:
        print_message(
            f"areas are estimated as {SHARE_OF_BOX} of the boxes, {SHARE_OF_KEYPOINT_BOX} of those around the "
            "keypoints, the medians of COCO's people: whole boxes make the AP too high",
            file=messages,
        )
    if is_standard_output(output):
        return
    print_message(f"wrote {output}; its images are in {folder}", file=messages)
    words = ["lint", output, "--images", folder]
    if tuple(document["categories"][0].get("keypoints") or ()) != COCO.file_names:
        words = ["skeleton", output, "--output", output.with_suffix(".toml")]
    print_message(f"next: {command_line('annotations', *words)}", file=messages)


def _merge(args: argparse.Namespace) -> None:
    check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    _write_documents(args, [args.output], [merge_annotations(args.annotations, args.images)])


def _split(args: argparse.Namespace) -> None:
    check_outputs(args.output, input_files(args), overwrite=args.overwrite)
    if len(args.shares) != len(args.output):
        counts = pluralize(len(args.output), "file"), pluralize(len(args.shares), "share")
        raise DataError("--output names {}, --shares {}; give one share for each".format(*counts))
    parts = split_annotations(args.annotations, args.shares, args.seed, args.images)
    _write_documents(args, args.output, parts)


def _subset(args: argparse.Namespace) -> None:
    check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    ids = None if args.image_ids is None else read_image_ids(args.image_ids)
    chosen = select_images(args.annotations, ids, number=args.number, seed=args.seed)
    _write_documents(args, [args.output], [chosen])


def _write_documents(args: argparse.Namespace, outputs: list[Path], documents: list[dict[str, Any]]) -> None:
    for output, document in zip(outputs, documents):
        write_output(output, json.dumps(document))
        print_message(f"wrote {output}: {describe_counts(document)}", file=message_stream(*outputs))


def _skeleton(args: argparse.Namespace) -> None:
    if args.output is not None:
        check_outputs([args.output], input_files(args), overwrite=args.overwrite)
    messages = message_stream(args.output)
    comments = {}
    suffix = Path(args.source).suffix.lower()
    if args.source == BUILT_IN or suffix == ".toml":
        skeleton = load_skeleton(args.source)
    elif suffix == ".h5":
        with Store(args.source) as store:
            skeleton = store.skeleton
    elif suffix in (".pth", ".pt"):
        from posenet.checkpoints.weights import stored_config  # imports PyTorch

        skeleton = stored_config(args.source).model.skeleton
    else:
        draft = draft_skeleton(args.source, args.category)
        skeleton = draft.skeleton
        comments = draft.comments
        print_message(f"category    {to_single_line(draft.category)}", file=messages)
    _print_skeleton(skeleton, messages)
    if args.output is None:
        return
    write_output(args.output, skeleton_to_toml(skeleton, comments))
    if is_standard_output(args.output):
        return
    print_message(
        f"wrote {args.output}; check it, then pass it to build-hdf5 and annotations lint with --skeleton and to train "
        f"with --set model.skeleton={args.output}",
        file=messages,
    )


def _print_skeleton(skeleton: Skeleton, messages: TextIO) -> None:
    lines = {
        "keypoints": f"{skeleton.num_keypoints}: {', '.join(skeleton.keypoints)}",
        "parts": f"{skeleton.num_parts}: {', '.join('-'.join(part) for part in skeleton.parts)}",
        "left-right": ", ".join("-".join(pair) for pair in skeleton.left_right) or "none",
        "mirrored": "yes" if skeleton.mirror else "no: nothing says which keypoints are left and right",
        "derived": ", ".join(f"{name} between {a} and {b}" for name, (a, b) in skeleton.derived.items()) or "none",
        "layout": "known" if skeleton.layout else "not known",
        "channels": str(skeleton.num_channels),
    }
    for name, text in lines.items():
        print_message(f"{name:<12}{to_single_line(text)}", file=messages)
