"""``export-onnx --int8``: its options, its calibration images, and its report of size, speed and AP."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from torch import nn

from posenet.annotations.reading import read_split
from posenet.benchmark.report import format_table
from posenet.cli.options import positive_int
from posenet.errors import ConfigError, DataError
from posenet.images import find_images
from posenet.inference.calibration import (
    CALIBRATION_IMAGES,
    choose_calibration_files,
    find_calibrated,
    read_calibration_images,
)
from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.evaluation import evaluate
from posenet.inference.onnx_export import write_onnx
from posenet.inference.onnx_metadata import OnnxMetadata
from posenet.inference.onnx_quantization import QuantizedNetwork, check_packages, quantize_network
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.model.fused import FusedNetwork
from posenet.settings import Config, InferenceConfig

SHOWN_BLOCKS = 5
"""Number of blocks in the report if fewer are kept in float32."""


def add_int8_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of 8-bit files."""
    group = parser.add_argument_group("8-bit files")
    add = group.add_argument
    add(
        "--int8",
        action="store_true",
        help="store and compute the network in 8-bit integers, except for the blocks that lose most (default: float32)",
    )
    add(
        "--calibrate",
        nargs="+",
        metavar="IMAGES",
        help="images like those to predict: files, folders or patterns; the ranges of values are measured on them",
    )
    add(
        "--calibrate-limit",
        type=positive_int,
        default=CALIBRATION_IMAGES,
        metavar="N",
        help="calibrate on at most this many of the images, chosen at equal distances (default: %(default)s)",
    )
    add("--verify-images", metavar="DIR", help="folder of images on which the AP before and after is measured")
    add("--verify-annotations", metavar="JSON", help="person_keypoints_*.json of these images")


def check_int8_options(args: argparse.Namespace) -> list[Path]:
    """The calibration files; none without ``--int8``.

    Raises:
        ConfigError: flags are missing, or do not go together; or a package is missing.
        DataError: there are no calibration images.
    """
    if not args.int8:
        for flag in ("calibrate", "verify_images", "verify_annotations"):
            if getattr(args, flag):
                raise ConfigError(f"--{flag.replace('_', '-')} needs --int8")
        return []
    if not args.calibrate:
        raise ConfigError("--int8 needs --calibrate IMAGES: some images like those that the network will see")
    if bool(args.verify_images) != bool(args.verify_annotations):
        raise ConfigError("--verify-images and --verify-annotations need each other")
    check_packages()
    files = find_images(args.calibrate)
    if args.verify_annotations:
        read_split(args.verify_annotations)  # raises its errors before the work is done
        if not Path(args.verify_images).is_dir():
            raise DataError(f"--verify-images {args.verify_images} is not a folder")
    return choose_calibration_files(files, args.calibrate_limit)


def quantize(
    network: nn.Module,
    selector: CandidateSelector,
    metadata: OnnxMetadata,
    files: Sequence[Path],
    settings: InferenceConfig,
) -> QuantizedNetwork:
    """The 8-bit network, calibrated on image files."""
    images = read_calibration_images(files, Predictor(network, settings).letterbox)
    return quantize_network(network, selector, metadata, images)


def report_int8(network: nn.Module, config: Config, quantized: QuantizedNetwork, messages: TextIO) -> None:
    """Print the errors of the blocks, and the size and speed of the file."""
    kept = [block for block in quantized.blocks if block.kept]
    rows = [
        (
            block.name.removeprefix("network."),
            f"{block.error:.1%}",
            f"{block.share:.1%}",
            "float32" if block.kept else "int8",
        )
        for block in quantized.blocks
        if block.kept or block in quantized.blocks[:SHOWN_BLOCKS]
    ]
    share = sum(block.share for block in kept)
    print(
        f"\nerror of the maps: {quantized.error:.1%} with {len(kept)} of {len(quantized.blocks)} blocks in float32 "
        f"({share:.1%} of the multiplications), {quantized.error_of_all:.1%} with none; the blocks that lose most:",
        file=messages,
    )
    print(format_table(("block", "error alone", "multiplications", "kept in"), rows), file=messages)


class Verification:
    """The AP before and after, on images that were not used for calibration.

    Raises:
        DataError: all images of the split were used for calibration.
    """

    def __init__(self, args: argparse.Namespace, config: Config, files: Sequence[Path]) -> None:
        self.folder = Path(args.verify_images)
        self.annotations = args.verify_annotations
        self.config = config
        images = read_split(self.annotations, None, config.model.skeleton).images
        self.calibrated = find_calibrated(files, self.folder, images)
        self.image_ids = {image.id for image in images} - self.calibrated
        if not self.image_ids:
            raise DataError(f"all images of {self.annotations} were used for calibration; calibrate on other images")

    def report(self, network: nn.Module, quantized: QuantizedNetwork, messages: TextIO) -> None:
        """Print the AP in float32 and in 8 bits, both at one scale without flips."""
        if self.calibrated:
            print(
                f"\nimages of {self.annotations} also used for calibration, without which the AP is measured: "
                f"{len(self.calibrated)}",
                file=messages,
            )
        settings = dataclasses.replace(self.config.inference, flip=False, scales=(1.0,))
        before = self._measure_ap(Predictor(FusedNetwork(network), settings, skeleton=self.config.model.skeleton))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "int8.onnx")
            write_onnx(quantized.model, path)
            after = self._measure_ap(Predictor.from_checkpoint(path, device="cpu"))
        print(
            f"\nAP on {pluralize(len(self.image_ids), 'image')}, one scale, no flips: {before:.4f} in float32, "
            f"{after:.4f} in int8 ({100 * (after - before):+.2f} points)",
            file=messages,
        )

    def _measure_ap(self, predictor: Predictor) -> float:
        evaluation = evaluate(
            predictor,
            self.folder,
            self.annotations,
            image_ids=self.image_ids,
            exif_frame=self.config.data.exif_frame,
        )
        if evaluation is None:
            raise DataError(f"{self.annotations} contains no annotations, so there is no AP")
        return evaluation.metrics["AP"]
