"""Export a network as an ONNX file, which computes the maps of images without PyTorch.

PyTorch is imported when the flags and the files that they name are checked.
"""

import argparse

from posenet.checkpoints.file import find_weights
from posenet.cli.main import print_message
from posenet.cli.options import (
    CHECKPOINT_HELP,
    add_config_options,
    add_overwrite_option,
    add_switch,
    input_files,
    message_stream,
    requested_config,
)
from posenet.errors import ConfigError
from posenet.files import check_outputs, is_standard_output, write_atomically
from posenet.images import find_images
from posenet.inference.exports.runtimes import INPUT, OUTPUT, require_packages
from posenet.inference.networks import is_exported_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``export-onnx``."""
    parser.add_argument("--checkpoint", "--weights", required=True, metavar="FILE", help=CHECKPOINT_HELP)
    parser.add_argument("--output", required=True, metavar="FILE.onnx", help="file to write")
    add_overwrite_option(parser)
    add_switch(parser, "--int8", "compute all convolutions but the last two in 8 bits; needs --calibrate")
    text = "images like those to predict: files, folders or patterns; the ranges of values are measured on some of them"
    parser.add_argument("--calibrate", nargs="+", metavar="IMAGES", help=f"{text} (default: none)")
    add_config_options(parser)


def run(args: argparse.Namespace) -> None:
    """Export the network of a checkpoint."""
    if is_exported_file(args.checkpoint):
        raise ConfigError(f"{args.checkpoint} is an exported file already; give the checkpoint that it comes from")
    if not (is_exported_file(args.output) or is_standard_output(args.output)):
        raise ConfigError(f"--output {args.output} does not end in .onnx, the only format that is written; rename it")
    if args.int8 != bool(args.calibrate):
        raise ConfigError("--int8 and --calibrate IMAGES need each other: images like those that the network will see")
    require_packages("onnx", *(["onnxruntime"] if args.int8 else []))
    files = find_images(args.calibrate) if args.int8 else []
    check_outputs([args.output], [*input_files(args), *files], overwrite=args.overwrite)
    find_weights(args.checkpoint)
    requested = requested_config(args, args.checkpoint)
    from posenet.checkpoints.weights import load_model
    from posenet.inference.exports.onnx_export import build_onnx, quantize_onnx, read_calibration_images

    network, config = load_model(args.checkpoint, requested)
    model = build_onnx(network, config, for_quantization=args.int8)
    if args.int8:
        model = quantize_onnx(model, config, read_calibration_images(files, config.inference))
    write_atomically(args.output, model.SerializeToString())

    messages = message_stream(args.output)
    facts = f"{model.ByteSize() / 1e6:.1f} MB, input {INPUT}, output {OUTPUT}; see posenet docs deployment"
    print_message(f"wrote {args.output}: {facts}", file=messages)
    if args.int8:
        advice = "compare its AP with that of the checkpoint on images that were not used for calibration: run"
        command = "posenet evaluate --checkpoint FILE --images DIR --annotations JSON"
        print_message(f"{advice}\n{command} with {args.output} and with {args.checkpoint}", file=messages)
