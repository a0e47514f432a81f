"""Evaluate a checkpoint on a COCO keypoint split: AP and AR, and the results file."""

import argparse
from itertools import chain
from pathlib import Path
from typing import Any

from posenet.annotations.coco import list_image_files
from posenet.checkpoints.file import find_weights
from posenet.cli.main import print_message
from posenet.cli.options import (
    add_image_ids,
    add_network_options,
    add_overwrite_option,
    input_files,
    make_predictor,
    message_stream,
    overridden,
    read_image_ids,
)
from posenet.cli.processes import add_process_options, run_on_ranks
from posenet.devices.ranks import Ranks
from posenet.errors import DataError
from posenet.files import check_outputs
from posenet.images import require_image_folder
from posenet.inference.evaluation import Evaluation, backend_of_evaluation, evaluate
from posenet.inference.networks import device_of_process, is_exported_file
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.visualization.drawing import MIN_SCORE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``evaluate``."""
    add = parser.add_argument
    add("--images", type=Path, required=True, metavar="DIR", help="folder of the split's images")
    text = "COCO keypoint file, or image_info_*.json for predictions without metrics"
    add("--annotations", type=Path, required=True, metavar="JSON", help=text)
    add("--output", metavar="JSON", help="write the predictions here, in COCO's results format")
    add_image_ids(parser, "evaluate only these images: ids, or one text file of ids (default: all)")
    text = "write the report of posenet diagnose into this folder: what costs the AP (default: none)"
    add("--report", type=Path, metavar="DIR", help=text)
    add_overwrite_option(parser)
    # Full precision and PyTorch, so that the AP is the same on every machine.
    add_network_options(parser, amp="off", backend="torch for a checkpoint, auto for an exported file")
    # A flag of torch.distributed.launch, which also sets the environment.
    add_process_options(parser).add_argument("--local-rank", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Predict the split in one process or several, print the metrics, and write what the flags ask for."""
    args.backend = args.backend or backend_of_evaluation(args.checkpoint)
    return run_on_ranks(args, lambda ranks: _evaluate(args, ranks), lambda: _check_flags(args))


def _check_flags(args: argparse.Namespace) -> None:
    """Check the flags, inputs and outputs before PyTorch is imported and processes start."""
    if not is_exported_file(args.checkpoint):
        find_weights(args.checkpoint)
    require_image_folder(args.images)
    if not args.annotations.is_file():
        raise DataError(f"cannot read annotations {args.annotations}: it is no file; correct the path")
    outputs = [Path(args.output)] if args.output else []
    if args.report:
        from posenet.cli.diagnose import diagnosis_paths

        outputs += diagnosis_paths(args.report)
    inputs = chain(input_files(args), list_image_files(args.annotations, args.images))
    check_outputs(outputs, inputs, overwrite=args.overwrite)


def _evaluate(args: argparse.Namespace, ranks: Ranks) -> int:
    """Evaluate as one of the processes; rank 0 prints and writes."""
    ranks.run_on_main(lambda: _check_flags(args))
    image_ids = ranks.run_on_all(lambda: read_image_ids(args.image_ids))
    args.device = ranks.run_on_all(lambda: device_of_process(args.checkpoint, args.device, args.backend, ranks))
    predictor = ranks.run_on_all(lambda: make_predictor(args))
    # Of images and annotations, also for the report. An exported file has no frame of its own.
    frame = overridden(args, "data").get("exif_frame", predictor.exif_frame)
    options: dict[str, Any] = {"image_ids": image_ids, "exif_frame": frame}
    evaluation = evaluate(
        predictor,
        args.images,
        args.annotations,
        output=args.output,
        overwrite=args.overwrite,
        progress=ranks.is_main and not args.quiet,
        ranks=ranks,
        **options,
    )
    if not ranks.is_main:
        return 0
    messages = message_stream(args.output)
    if args.output:
        print_message(f"wrote {args.output}", file=messages)
    if evaluation is None:
        missing = "metrics and no report" if args.report else "metrics"
        print_message(f"{args.annotations} contains no annotations, so there are no {missing}", file=messages)
        return 0
    print_message(f"{pluralize(evaluation.images, 'image')}\n{evaluation.table()}", file=messages)
    if args.report:
        print_message(file=messages)
        _write_report(args, evaluation, predictor, options)
    return 0


def _write_report(
    args: argparse.Namespace, evaluation: Evaluation, predictor: Predictor, options: dict[str, Any]
) -> None:
    # An evaluation needs the diagnosis for its report alone.
    from posenet.cli.diagnose import write_diagnosis
    from posenet.diagnosis.diagnose import diagnose

    options |= {"skeleton": predictor.skeleton, "images_dir": args.images, "name": Path(args.checkpoint).name}
    diagnosis = diagnose(args.annotations, evaluation.results, **options)
    settings = predictor.settings
    provenance = {
        "Checkpoint": args.checkpoint,
        "Annotations": str(args.annotations),
        "Height": str(settings.height),
        "Flip": "yes" if settings.flip else "no",
        "Scales": ", ".join(f"{scale:g}" for scale in settings.scales),
    }
    messages = message_stream(args.output)
    write_diagnosis(diagnosis, args.images, args.report, provenance, messages, MIN_SCORE)
