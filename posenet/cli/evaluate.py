"""Evaluate a checkpoint on a COCO keypoint split: AP and AR, and the results file."""

from __future__ import annotations

import argparse
from pathlib import Path

from posenet.cli.diagnosis_outputs import diagnosis_paths, write_diagnosis
from posenet.cli.options import add_exif_frame_option, message_stream, read_image_ids, select_exif_frame
from posenet.cli.predictor_options import add_predictor_options, make_predictor
from posenet.cli.ranks import (
    RankInfo,
    add_rank_options,
    form_team,
    open_runtime,
    run_on_all,
    run_on_main,
    run_on_ranks,
    use_device_of_rank,
)
from posenet.diagnosis.diagnose import diagnose
from posenet.errors import ConfigError
from posenet.files import check_outputs, is_standard_output
from posenet.inference.coco_evaluation import Evaluation
from posenet.inference.evaluation import evaluate
from posenet.inference.predictor import Predictor
from posenet.messages import pluralize
from posenet.settings import Config, ExifFrame
from posenet.visualization.curves import (
    MATPLOTLIB_MISSING,
    evaluation_paths,
    has_matplotlib,
    write_evaluation_curves,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``evaluate``."""
    add_predictor_options(parser, amp="off")  # full precision, so that the AP is the same on every machine
    add_rank_options(parser)
    parser.add_argument("--images", required=True, metavar="DIR", help="folder of the split's images")
    parser.add_argument(
        "--annotations",
        required=True,
        metavar="JSON",
        help="person_keypoints_*.json, or image_info_*.json for predictions without metrics",
    )
    parser.add_argument("--output", metavar="JSON", help="write the predictions here, in COCO's results format")
    parser.add_argument(
        "--image-ids",
        nargs="+",
        metavar="ID",
        help="evaluate only these images: ids, or one text file of ids (default: all)",
    )
    add_exif_frame_option(parser, of_checkpoint=True)
    parser.add_argument(
        "--plots",
        metavar="DIR",
        help="write charts here: precision over recall, and the OKS of every keypoint (needs matplotlib)",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="DIR",
        help="write the report of posenet diagnose into this folder: what costs the AP (default: none)",
    )


def run(args: argparse.Namespace) -> int:
    """Predict the split in one process or several, print the metrics, and write what the flags ask for."""
    return run_on_ranks(args, _evaluate)


def _evaluate(args: argparse.Namespace, rank_info: RankInfo) -> None:
    """Evaluate as one of the processes; rank 0 prints and writes."""
    with open_runtime(args, rank_info) as runtime:
        run_on_main(runtime, lambda: _check_flags(args))
        image_ids = run_on_main(runtime, lambda: None if args.image_ids is None else read_image_ids(args.image_ids))
        predictor, config = run_on_all(runtime, lambda: _make_predictor(args, rank_info))
        exif_frame = select_exif_frame(args, config)
        folder = None if args.output is None or is_standard_output(args.output) else Path(f"{args.output}.parts")
        with form_team(args, runtime, folder) as team:
            evaluation = evaluate(
                predictor,
                args.images,
                args.annotations,
                output=args.output,
                image_ids=image_ids,
                exif_frame=exif_frame,
                team=team,
            )
    if rank_info.rank == 0:
        _report(args, evaluation, predictor, image_ids, exif_frame)


def _make_predictor(args: argparse.Namespace, rank_info: RankInfo) -> tuple[Predictor, Config]:
    use_device_of_rank(args, rank_info)
    return make_predictor(args, parallel=True)


def _check_flags(args: argparse.Namespace) -> None:
    if args.plots and not has_matplotlib():
        raise ConfigError(f"--plots: {MATPLOTLIB_MISSING}")
    outputs = evaluation_paths(Path(args.plots)) if args.plots else []
    if args.output:
        outputs.append(Path(args.output))
    if args.report:
        outputs += diagnosis_paths(args.report)
    check_outputs(outputs, [Path(args.annotations), Path(args.checkpoint)])


def _report(
    args: argparse.Namespace,
    evaluation: Evaluation | None,
    predictor: Predictor,
    image_ids: set[int] | None,
    exif_frame: ExifFrame,
) -> None:
    """Print the metrics, and write the charts and the report."""
    messages = message_stream(args.output)
    if args.output:
        print(f"wrote {args.output}", file=messages)
    if evaluation is None:
        missing = ["metrics", *(["charts"] if args.plots else []), *(["report"] if args.report else [])]
        print(f"{args.annotations} contains no annotations, so there are no {' and no '.join(missing)}", file=messages)
        return
    print(pluralize(evaluation.images, "image"), file=messages)
    print(evaluation.table(), file=messages)
    print("\nmean OKS of each keypoint, 0 in people not found:", file=messages)
    print(evaluation.keypoint_table(), file=messages)
    if args.report:
        diagnosis = diagnose(
            args.annotations,
            evaluation.results,
            skeleton=predictor.skeleton,
            image_ids=image_ids,
            name=Path(args.checkpoint).name,
        )
        print(file=messages)
        provenance = {
            "Checkpoint": args.checkpoint,
            "Annotations": args.annotations,
            "Height": str(predictor.settings.height),
            "Flip": "yes" if predictor.settings.flip else "no",
            "Scales": ", ".join(f"{scale:g}" for scale in predictor.settings.scales),
        }
        write_diagnosis(
            [diagnosis], Path(args.images), args.report, messages, provenance=provenance, exif_frame=exif_frame
        )
    if args.plots:
        print("\nwrote " + ", ".join(map(str, write_evaluation_curves(evaluation, Path(args.plots)))), file=messages)
