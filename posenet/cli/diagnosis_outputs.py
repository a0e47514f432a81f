"""What ``diagnose`` and ``evaluate --report`` write and print."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

import posenet
from posenet.cli.logging_setup import print_message
from posenet.diagnosis.diagnose import DIAGNOSIS_FILE, Diagnosis, write_diagnosis_file
from posenet.diagnosis.error_kinds import TEXTS
from posenet.diagnosis.report.page import REPORT_FILE, write_report
from posenet.messages import pluralize, to_single_line


def diagnosis_paths(folder: Path) -> list[Path]:
    """Paths of the files that ``write_diagnosis`` writes."""
    return [folder / DIAGNOSIS_FILE, folder / REPORT_FILE]


def write_diagnosis(
    diagnosis: Diagnosis,
    images_dir: Path | None,
    folder: Path,
    messages: TextIO,
    *,
    provenance: Mapping[str, str],
    min_score: float = 0.0,
) -> None:
    """Write all files, and print a summary; for the arguments see ``write_report``."""
    written = f"{time.strftime('%Y-%m-%d %H:%M')} by posenet {posenet.__version__}"
    facts = {**provenance, "Images": str(images_dir or "not shown"), "Written": written}
    write_diagnosis_file(diagnosis, folder, facts)
    write_report(diagnosis, folder, images_dir, provenance=facts, min_score=min_score)
    print_message(_summarize(diagnosis), file=messages)
    print_message("wrote " + ", ".join(map(str, diagnosis_paths(folder))), file=messages)


def _summarize(diagnosis: Diagnosis) -> str:
    """What costs the AP, as a few lines."""
    counts, skeleton = diagnosis.counts, diagnosis.matched.skeleton
    missed = skeleton.count(diagnosis.missed_by_threshold[0], "missed")
    lines = [
        f"{diagnosis.name}: AP {diagnosis.ap:.3f}; {skeleton.count(diagnosis.num_people)}, "
        f"{missed} at OKS 0.5, {pluralize(diagnosis.num_results, 'result')}",
        f"  {pluralize(sum(counts.values()), 'keypoint')} compared: "
        + ", ".join(f"{count} {_name(kind)}" for kind, count in counts.items()),
        "  AP gained by correcting "
        + ", then ".join(f"{_name(kind)} {gain:+.3f}" for kind, gain in diagnosis.costs.items()),
    ]
    if limit := diagnosis.describe_limit():
        lines.append(f"  {to_single_line(limit)}")
    return "\n".join(lines)


def _name(kind: str) -> str:
    """The name of a kind on the page, where the last correction is split into missed people and inexact results."""
    return "missed or inexact" if kind == "missed" else TEXTS[kind].label.lower()
