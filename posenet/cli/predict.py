"""Find people in images, videos, streams and cameras; draw them, and write their keypoints."""

from __future__ import annotations

import argparse
import dataclasses

from posenet.cli.logging_setup import print_message
from posenet.cli.options import (
    add_overwrite_option,
    add_switch,
    fraction,
    input_files,
    message_stream,
    positive_int,
    seconds,
)
from posenet.cli.predictor_options import add_checkpoint_option, add_network_options, make_predictor
from posenet.cli.processes import refuse_launcher
from posenet.devices.signals import catch_stop_signals
from posenet.inference.outputs.output_files import PredictionOptions
from posenet.inference.predict import predict
from posenet.visualization.drawing import MIN_SCORE

PUBLISHED = "simplepose"
"""The name of the published weights."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``predict``."""
    parser.add_argument(
        "inputs",
        nargs="+",
        metavar="INPUT",
        help="images, videos, folders, quoted glob patterns, addresses (http, https, rtsp) or cameras (0, "
        "/dev/video0); - reads a list of files from standard input",
    )
    add_checkpoint_option(parser, default=PUBLISHED)

    group = parser.add_argument_group("output")
    outputs = {
        "--output DIR": "folder for drawings of images and videos (default: a new folder, if no output is named)",
        "--json FILE": "write all people to this file, as COCO results with file names, and in videos with frame "
        "numbers and times; a .jsonl file gets one line per image or frame while the tool runs; a folder gets a file "
        "for each image; - is standard output",
        "--coco FILE": "write a COCO data set: all images, with the people as annotations; file names are relative to "
        "the folder that holds all inputs",
        "--csv FILE": "write a table with one person per row",
        "--export FILE": "write the people for correction in a labelling tool: .slp (SLEAP), .xml (CVAT) or .json "
        "(Label Studio)",
        "--heatmaps DIR": "folder for all maps of the network, one labelled sheet per image or frame",
    }
    for words, text in outputs.items():
        flag, metavar = words.split()
        group.add_argument(flag, metavar=metavar, help=text)
    add_switch(
        group, "--show", help="show the drawings in a window; Q ends, any other key continues with the next image"
    )
    group.add_argument(
        "--min-score", type=fraction, default=MIN_SCORE, metavar="X", help="leave out people with a lower score, 0-1"
    )
    add_overwrite_option(group)
    add_switch(
        group,
        "--resume",
        help="leave out inputs whose outputs are complete: their file in a folder, or their line in a .jsonl file, "
        "from which another file of all people is put together at the end",
    )

    group = parser.add_argument_group("input")
    add_switch(
        group,
        "--recursive",
        help="also search the subfolders of folders, and write drawings into subfolders of the same names",
    )

    group = parser.add_argument_group("video")
    group.add_argument("--start", type=seconds, metavar="SECONDS", help="skip the beginning of every video")
    group.add_argument(
        "--duration", type=seconds, metavar="SECONDS", help="read only this long from every video (default: all)"
    )
    group.add_argument("--stride", type=positive_int, metavar="N", help="read only every N-th frame of videos")
    add_switch(
        group,
        "--track",
        help="give every person of a video an id and a colour that stay; with --set tracking.smooth=true, without the "
        "jitter of the keypoints",
    )
    parser.set_defaults(**{name: getattr(PredictionOptions, name) for name in ("start", "duration", "stride")})

    add_network_options(parser, amp="auto")


def run(args: argparse.Namespace) -> None:
    """Predict all frames that can be read.

    Raises:
        DataError: at the end, if frames could not be read.
        KeyboardInterrupt: after Ctrl-C, when the frames in progress are written.
    """
    if "-" not in args.inputs:  # which may be a list of its own for each process
        refuse_launcher("give each process a part of the list from standard input, see posenet docs scale")
    messages = message_stream(args.json, args.coco, args.csv)
    names = [field.name for field in dataclasses.fields(PredictionOptions) if field.name in args]
    options = {name: getattr(args, name) for name in names}
    with catch_stop_signals() as stop_requested:
        summary = predict(
            args.inputs,
            lambda num_images: make_predictor(args, args.min_score, num_images),
            progress=not args.quiet,
            stop_requested=stop_requested,
            other_inputs=input_files(args),
            **options,
        )
        if not args.quiet:
            if summary.has_frames:
                print_message(summary, file=messages)
            if summary.speed():
                print_message(summary.speed(), file=messages)
            if summary.files:
                print_message("wrote " + ", ".join(summary.files), file=messages)
    # Ctrl-C is the ordinary way to end a camera or a live stream.
    if summary.is_interrupted and not summary.counts["live frames"]:
        raise KeyboardInterrupt
    if error := summary.unreadable_error():
        raise error
