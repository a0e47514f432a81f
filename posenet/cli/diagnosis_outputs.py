"""What ``diagnose`` and ``evaluate --report`` write and print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from posenet.diagnosis.charts import chart_paths, write_charts
from posenet.diagnosis.compare import compare
from posenet.diagnosis.json_file import DIAGNOSIS_FILE, write_diagnosis_file
from posenet.diagnosis.result import CORRECTIONS, KINDS, Comparison, Diagnosis
from posenet.messages import pluralize
from posenet.report.writer import REPORT_FILE, write_report
from posenet.settings import ExifFrame
from posenet.visualization.matplotlib_figure import has_matplotlib


def diagnosis_paths(folder: Path) -> list[Path]:
    """Paths of the files that ``write_diagnosis`` writes."""
    charts = chart_paths(folder) if has_matplotlib() else []
    return [folder / DIAGNOSIS_FILE, folder / REPORT_FILE, *charts]


def write_diagnosis(
    diagnoses: Sequence[Diagnosis], images_dir: Path | None, folder: Path, exif_frame: ExifFrame, messages: TextIO
) -> None:
    """Compare several diagnoses, write all files, and print a summary.

    Args:
        images_dir: folder of the images for the report; None to draw the people without images.
        exif_frame: see ``find_annotated_frame``.
    """
    comparison = compare(diagnoses) if len(diagnoses) > 1 else None
    write_diagnosis_file(diagnoses, comparison, folder)
    if has_matplotlib():
        write_charts(diagnoses, folder)
    write_report(diagnoses, comparison, folder, images_dir, exif_frame=exif_frame)
    for diagnosis in diagnoses:
        print(summarize(diagnosis), file=messages)
    if comparison is not None:
        print(summarize_comparison(comparison), file=messages)
    print("wrote " + ", ".join(map(str, diagnosis_paths(folder))), file=messages)


def summarize(diagnosis: Diagnosis) -> str:
    """What costs the AP, as a few lines."""
    keypoints = sum(diagnosis.counts.values())
    kinds = ", ".join(f"{diagnosis.counts[kind]} {kind}" for kind in KINDS)
    costs = diagnosis.costs
    lines = [
        f"{diagnosis.name}: AP {diagnosis.ap:.3f}; {pluralize(diagnosis.num_people, 'person', 'people')}, "
        f"{pluralize(diagnosis.num_results, 'result')}",
        f"  {pluralize(keypoints, 'keypoint')} compared: {kinds}",
        f"  at OKS 0.5: {pluralize(diagnosis.background, 'background result')}, "
        f"{pluralize(diagnosis.missed, 'missed person', 'missed people')}",
        "  AP gained by correcting " + ", then ".join(f"{kind} {costs[kind]:+.3f}" for kind in CORRECTIONS),
        "  alone: " + ", ".join(f"{kind} {diagnosis.alone[kind] - diagnosis.ap:+.3f}" for kind in CORRECTIONS),
    ]
    if diagnosis.num_results == 0:
        lines.append("  the results are empty, so everybody is missed")
    if diagnosis.perfect_grouping is not None:
        lines.append(
            f"  the network's candidates, grouped perfectly: AP {diagnosis.perfect_grouping['AP']:.3f}; "
            "a better decoder can gain the difference, better training the rest"
        )
    return "\n".join(lines)


def summarize_comparison(comparison: Comparison) -> str:
    """The AP difference of each results file, and whether it may be noise."""
    lines = []
    for difference in comparison.differences:
        low, high = difference.interval
        verdict = "" if difference.significant else ", so it may be noise"
        lines.append(
            f"{difference.name} - {difference.baseline}: AP {difference.ap_difference:+.4f}, "
            f"95 % interval {low:+.4f} to {high:+.4f}{verdict}"
        )
    return "\n".join(lines)
