"""What ``diagnose`` and ``evaluate --report`` write and print."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import posenet
from posenet.cli.logging_setup import print_message
from posenet.diagnosis.compare import Difference, compare
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.error_kinds import CORRECTIONS, TEXTS
from posenet.diagnosis.json_file import DIAGNOSIS_FILE, write_diagnosis_file
from posenet.diagnosis.report import REPORT_FILE, write_report
from posenet.messages import pluralize
from posenet.settings import DataConfig, ExifFrame


def diagnosis_paths(folder: Path) -> list[Path]:
    """Paths of the files that ``write_diagnosis`` writes."""
    return [folder / DIAGNOSIS_FILE, folder / REPORT_FILE]


def write_diagnosis(
    diagnoses: Sequence[Diagnosis],
    images_dir: Path | None,
    folder: Path,
    messages: TextIO,
    *,
    provenance: Mapping[str, str],
    exif_frame: ExifFrame = DataConfig.exif_frame,
) -> None:
    """Compare several diagnoses, write all files, and print a summary; for the arguments see ``write_report``."""
    differences = compare(diagnoses) if len(diagnoses) > 1 else []
    written = f"{time.strftime('%Y-%m-%d %H:%M')} by posenet {posenet.__version__}"
    facts = {**provenance, "Images": str(images_dir or "not shown"), "Written": written}
    write_diagnosis_file(diagnoses, differences, folder, facts)
    write_report(diagnoses, differences, folder, images_dir, provenance=facts, exif_frame=exif_frame)
    for diagnosis in diagnoses:
        print_message(_summarize(diagnosis), file=messages)
    for difference in differences:
        print_message(_summarize_difference(difference), file=messages)
    print_message("wrote " + ", ".join(map(str, diagnosis_paths(folder))), file=messages)


def _summarize(diagnosis: Diagnosis) -> str:
    """What costs the AP, as a few lines."""
    counts = diagnosis.counts
    skeleton = diagnosis.matched.skeleton
    lines = [
        f"{diagnosis.name}: AP {diagnosis.ap:.3f}; {skeleton.count(diagnosis.num_people)}, "
        f"{pluralize(diagnosis.num_results, 'result')}",
        f"  {pluralize(sum(counts.values()), 'keypoint')} compared: "
        + ", ".join(f"{count} {_name(kind)}" for kind, count in counts.items()),
        f"  at OKS 0.5: {pluralize(diagnosis.background, 'background result')}, "
        f"{skeleton.count(diagnosis.missed, 'missed')}",
        "  AP gained by correcting "
        + ", then ".join(f"{_name(kind)} {gain:+.3f}" for kind, gain in diagnosis.costs.items()),
        "  alone: " + ", ".join(f"{_name(kind)} {diagnosis.alone[kind] - diagnosis.ap:+.3f}" for kind in CORRECTIONS),
    ]
    if diagnosis.num_results == 0:
        lines.append("  the results are empty, so all are missed")
    return "\n".join(lines)


def _name(kind: str) -> str:
    """The name of a kind on the page, where the last correction is split into missed people and inexact results."""
    return "missed or inexact" if kind == "missed" else TEXTS[kind].label.lower()


def _summarize_difference(difference: Difference) -> str:
    """The AP difference, and whether it may be noise."""
    low, high = difference.interval
    verdict = "" if difference.significant else ", so it may be noise"
    return (
        f"{difference.name} - {difference.baseline}: AP {difference.ap_difference:+.4f}, "
        f"95 % interval {low:+.4f} to {high:+.4f}{verdict}"
    )
