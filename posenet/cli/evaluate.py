"""Evaluate a checkpoint on a COCO keypoint split: AP and AR, and the results file."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from posenet.annotations.coco import list_image_files
from posenet.checkpoints.named import find_weights
from posenet.cli.logging_setup import print_message
from posenet.cli.options import add_overwrite_option, input_files, message_stream, read_image_ids
from posenet.cli.predictor_options import add_checkpoint_option, add_network_options, make_predictor
from posenet.cli.processes import add_local_rank, add_process_options, run_on_ranks
from posenet.devices.ranks import Ranks
from posenet.errors import DataError
from posenet.files import check_outputs
from posenet.images import require_image_folder
from posenet.inference.evaluation import Evaluation, backend_of_evaluation, evaluate
from posenet.inference.networks import device_of_process, is_exported_file
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.settings import ExifFrame, load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``evaluate``."""
    add_checkpoint_option(parser)
    parser.add_argument("--images", required=True, metavar="DIR", help="folder of the split's images")
    parser.add_argument(
        "--annotations",
        required=True,
        metavar="JSON",
        help="COCO keypoint file, or image_info_*.json for predictions without metrics",
    )
    parser.add_argument("--output", metavar="JSON", help="write the predictions here, in COCO's results format")
    parser.add_argument(
        "--image-ids",
        nargs="+",
        metavar="ID",
        help="evaluate only these images: ids, or one text file of ids (default: all)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write the report of posenet diagnose into this folder: what costs the AP (default: none)",
    )
    add_overwrite_option(parser)
    # Full precision and PyTorch, so that the AP is the same on every machine.
    add_network_options(parser, amp="off", backend="torch for a checkpoint, auto for an exported file")
    add_local_rank(add_process_options(parser))


def run(args: argparse.Namespace) -> int:
    """Predict the split in one process or several, print the metrics, and write what the flags ask for."""
    args.backend = args.backend or backend_of_evaluation(args.checkpoint)
    return run_on_ranks(args, lambda ranks: _evaluate(args, ranks), lambda: _check_flags(args))


def _evaluate(args: argparse.Namespace, ranks: Ranks) -> int:
    """Evaluate as one of the processes; rank 0 prints and writes."""
    ranks.run_on_main(lambda: _check_flags(args))
    image_ids = ranks.run_on_all(lambda: None if args.image_ids is None else read_image_ids(args.image_ids))
    if ranks.world_size > 1:
        args.device = ranks.run_on_all(
            lambda: device_of_process(args.checkpoint, args.device, args.backend, ranks.local_rank)
        )
    predictor = ranks.run_on_all(lambda: make_predictor(args))
    evaluation = evaluate(
        predictor,
        args.images,
        args.annotations,
        output=args.output if ranks.is_main else None,
        overwrite=args.overwrite,
        image_ids=image_ids,
        exif_frame=_exif_frame(args),
        progress=ranks.is_main and not args.quiet,
        ranks=ranks,
    )
    if ranks.is_main:
        _report(args, evaluation, predictor, image_ids)
    return 0


def _exif_frame(args: argparse.Namespace) -> ExifFrame:
    """That of the annotations, by ``--config`` and ``--set``."""
    return load_config(args.config, args.overrides).data.exif_frame


def _check_flags(args: argparse.Namespace) -> None:
    """Check the flags, inputs and outputs before PyTorch is imported and processes start."""
    if not is_exported_file(args.checkpoint):
        find_weights(args.checkpoint)
    require_image_folder(args.images)
    if not Path(args.annotations).is_file():
        raise DataError(f"cannot read annotations {args.annotations}: it is no file; correct the path")
    outputs = [Path(args.output)] if args.output else []
    if args.report:
        from posenet.cli.diagnosis_outputs import diagnosis_paths

        outputs += diagnosis_paths(args.report)
    inputs = chain(input_files(args), list_image_files(args.annotations, args.images))
    check_outputs(outputs, inputs, overwrite=args.overwrite)


def _report(
    args: argparse.Namespace, evaluation: Evaluation | None, predictor: Predictor, image_ids: set[int] | None
) -> None:
    """Print the metrics, and write the report."""
    messages = message_stream(args.output)
    if args.output:
        print_message(f"wrote {args.output}", file=messages)
    if evaluation is None:
        missing = "metrics and no report" if args.report else "metrics"
        print_message(f"{args.annotations} contains no annotations, so there are no {missing}", file=messages)
        return
    print_message(f"{pluralize(evaluation.images, 'image')}\n{evaluation.table()}", file=messages)
    if advice := evaluation.advise_on_min_score():
        print_message(f"\n{advice}", file=messages)
    if args.report:
        # An evaluation needs the diagnosis for its report alone.
        from posenet.cli.diagnosis_outputs import write_diagnosis
        from posenet.diagnosis.diagnose import diagnose

        name = Path(args.checkpoint).name
        diagnosis = diagnose(
            args.annotations,
            evaluation.results,
            skeleton=predictor.skeleton,
            image_ids=image_ids,
            images_dir=args.images,
            exif_frame=_exif_frame(args),
            name=name,
        )
        provenance = {
            "Checkpoint": args.checkpoint,
            "Annotations": args.annotations,
            "Height": str(predictor.settings.height),
            "Flip": "yes" if predictor.settings.flip else "no",
            "Scales": ", ".join(f"{scale:g}" for scale in predictor.settings.scales),
        }
        print_message(file=messages)
        write_diagnosis(
            diagnosis,
            Path(args.images),
            args.report,
            messages,
            provenance=provenance,
            min_score=evaluation.min_score,
        )
