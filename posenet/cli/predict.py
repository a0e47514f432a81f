"""Find people in images, videos, streams and cameras; draw them, and write their keypoints."""

import argparse
import dataclasses

from posenet.cli.main import print_message
from posenet.cli.options import (
    PUBLISHED,
    add_network_options,
    add_overwrite_option,
    add_switch,
    fraction,
    input_files,
    make_predictor,
    message_stream,
    positive_int,
    seconds,
)
from posenet.cli.processes import refuse_launcher
from posenet.devices.signals import catch_stop_signals
from posenet.inference.outputs import PredictionOptions
from posenet.inference.predict import predict
from posenet.visualization.drawing import MIN_SCORE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``predict``."""
    text = "images, videos, folders, quoted glob patterns, addresses (http, https, rtsp) or cameras (0, /dev/video0); "
    text += "- reads a list of files from standard input"
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=text)
    text = "also search the subfolders of folders, and write drawings into subfolders of the same names"
    add_switch(parser, "--recursive", text)

    group = parser.add_argument_group("output")
    outputs = {
        "--output DIR": "folder for drawings of images and videos (default: a new folder, if no output is named)",
        "--json FILE": "write all people to this file, as COCO results with file names, and in videos with frame "
        "numbers and times; a .jsonl file gets one line per image or frame while the tool runs; a folder gets a file "
        "for each image; - is standard output",
        "--coco FILE": "write a COCO data set: all images, with the people as annotations, for other programs; file "
        "names are relative to the folder that holds all inputs",
        "--csv FILE": "write a table with one person per row",
        "--heatmaps DIR": "folder for all maps of the network, one labelled sheet per image or frame",
    }
    for words, text in outputs.items():
        flag, metavar = words.split()
        group.add_argument(flag, metavar=metavar, help=text)
    add_switch(group, "--show", "show the drawings in a window; Q ends, any other key continues with the next image")
    text = "leave out people with a lower score, 0-1"
    group.add_argument("--min-score", type=fraction, default=MIN_SCORE, metavar="X", help=text)
    add_overwrite_option(group)
    text = "leave out inputs whose outputs are complete: their file in a folder, or their line in a .jsonl file, "
    text += "which is needed if another file of all people is written"
    add_switch(group, "--resume", text)

    group = parser.add_argument_group("video")
    add = group.add_argument
    defaults = PredictionOptions()
    add("--start", type=seconds, default=defaults.start, metavar="SECONDS", help="skip the beginning of every video")
    text = "read only this long from every video (default: all)"
    add("--duration", type=seconds, default=defaults.duration, metavar="SECONDS", help=text)
    add(
        "--stride", type=positive_int, default=defaults.stride, metavar="N", help="read only every N-th frame of videos"
    )
    text = "give every person of a video an id and a colour that stay; with --set tracking.smooth=true, without the "
    add_switch(group, "--track", text + "jitter of the keypoints")

    add_network_options(parser, amp="auto", checkpoint=PUBLISHED)


def run(args: argparse.Namespace) -> None:
    """Predict all frames that can be read.

    Raises:
        DataError: at the end, if frames could not be read.
        KeyboardInterrupt: after Ctrl-C, when the frames in progress are written.
    """
    if "-" not in args.inputs:  # which may be a list of its own for each process
        refuse_launcher("give each process a part of the list from standard input, see posenet docs scale")
    with catch_stop_signals() as stop_requested:
        summary = predict(
            args.inputs,
            lambda num_images: make_predictor(args, args.min_score, num_images),
            progress=not args.quiet,
            stop_requested=stop_requested,
            other_inputs=input_files(args),
            **{field.name: getattr(args, field.name) for field in dataclasses.fields(PredictionOptions)},
        )
        written = f"wrote {', '.join(summary.files)}" if summary.files else ""
        for line in (str(summary) if summary.has_frames else "", summary.speed(), written):
            if line and not args.quiet:
                print_message(line, file=message_stream(args.json, args.coco, args.csv))
    # Ctrl-C is the ordinary way to end a camera or a live stream.
    if summary.is_interrupted and not summary.counts["live frames"]:
        raise KeyboardInterrupt
    if error := summary.unreadable_error():
        raise error
