"""Export a network, together with the selection of keypoint candidates, as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TextIO

from posenet.cli.int8_export import Verification, add_int8_options, check_int8_options, quantize, report_int8
from posenet.cli.options import CHECKPOINT_HELP, add_config_options, message_stream, positive_int
from posenet.cli.predictor_options import load_network
from posenet.errors import ConfigError
from posenet.files import check_outputs
from posenet.inference.decoder.candidates import MAX_PEAKS
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.onnx_export import build_onnx, describe_export, write_onnx
from posenet.inference.onnx_metadata import INPUTS, OUTPUTS, OnnxMetadata


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
    add_int8_options(parser)
    add_config_options(parser)


def run(args: argparse.Namespace) -> None:
    """Export the network of a checkpoint."""
    if Path(args.checkpoint).suffix.lower() == ".onnx":
        raise ConfigError(
            f"{args.checkpoint} is an exported file already; give the checkpoint that it was exported from"
        )
    check_outputs([Path(args.output)], [Path(args.checkpoint)])
    files = check_int8_options(args)
    network, config = load_network(args)
    verification = Verification(args, config, files) if args.verify_images else None
    settings = config.inference
    selector = CandidateSelector(
        settings.keypoint_threshold, settings.part_threshold, args.max_peaks, skeleton=config.model.skeleton
    )
    metadata = describe_export(network, selector, settings.height, config)
    messages = message_stream(args.output)
    if args.int8:
        quantized = quantize(network, selector, metadata, files, settings)
        write_onnx(quantized.model, args.output)
        _report_file(args.output, metadata, messages)
        report_int8(network, config, quantized, messages)
        if verification is not None:
            verification.report(network, quantized, messages)
    else:
        write_onnx(build_onnx(network, selector, metadata), args.output)
        _report_file(args.output, metadata, messages)


def _report_file(output: str, metadata: OnnxMetadata, messages: TextIO) -> None:
    names = f"inputs {', '.join(INPUTS)}; outputs {', '.join(OUTPUTS)}"
    print(f"wrote {output}: {names}; see docs/deployment.md", file=messages)
    if metadata.left_out:
        print(f"the file leaves out {metadata.left_out}, so it finds other people than the checkpoint", file=messages)
