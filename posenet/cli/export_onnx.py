"""Export a network, together with the selection of keypoint candidates, as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.cli.options import CHECKPOINT_HELP, add_config_options, message_stream, positive_int
from posenet.cli.predictor_options import load_network
from posenet.files import check_outputs
from posenet.inference.decoder.candidates import MAX_PEAKS
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.onnx_export import build_onnx, describe_export, write_onnx
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``export-onnx``."""
    add = parser.add_argument
    add("--checkpoint", "--weights", required=True, metavar="FILE", help=CHECKPOINT_HELP)
    add("--output", required=True, metavar="FILE.onnx", help="file to write; an existing file is replaced")
    add(
        "--max-peaks",
        type=positive_int,
        default=MAX_PEAKS,
        metavar="N",
        help="candidates of each keypoint: at least as many as there are people in an image, at most 256",
    )
    add_config_options(parser)


def run(args: argparse.Namespace) -> None:
    """Export the network of a checkpoint."""
    check_outputs([Path(args.output)], [Path(args.checkpoint)])
    network, config = load_network(args)
    settings = config.inference
    selector = CandidateSelector(
        settings.keypoint_threshold, settings.part_threshold, args.max_peaks, skeleton=config.model.skeleton
    )
    metadata = describe_export(network, selector, settings.height, config)
    write_onnx(build_onnx(network, selector, metadata), args.output)
    names = f"inputs {', '.join(INPUTS)}; outputs {', '.join(OUTPUTS)}"
    messages = message_stream(args.output)
    print(f"wrote {args.output}: {names}; see docs/deployment.md", file=messages)
    if metadata.left_out:
        print(f"the file leaves out {metadata.left_out}, so it finds other people than the checkpoint", file=messages)
