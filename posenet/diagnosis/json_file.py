"""``diagnosis.json``: a diagnosis for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenet.diagnosis.average_precision import average_precision
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.error_kinds import CORRECTIONS, MISSED_AT_50, OKS_THRESHOLDS, UNCORRECTED
from posenet.files import write_atomically

DIAGNOSIS_FILE = "diagnosis.json"


def write_diagnosis_file(
    diagnosis: Diagnosis, output_dir: str | Path, provenance: Mapping[str, str] | None = None
) -> Path:
    """Write ``diagnosis.json`` into a folder and return its path. ``provenance`` says where the results come from.

    Lists of ten numbers are in the order of ``oks_thresholds``.
    """
    content: dict[str, Any] = {
        "name": diagnosis.name,
        "images": len(diagnosis.images),
        "people": diagnosis.num_people,
        "results": diagnosis.num_results,
        "AP": diagnosis.ap,
        "metrics": dict(diagnosis.metrics),
        "counts": diagnosis.counts,
        "keypoints": diagnosis.keypoints,
        "corrected": diagnosis.corrected,
        "alone": diagnosis.alone,
        MISSED_AT_50: {
            "corrected": average_precision(diagnosis.precision[MISSED_AT_50]),
            "alone": average_precision(diagnosis.alone_precision[MISSED_AT_50]),
        },
        "background": diagnosis.background,
        "missed": diagnosis.missed,
        "oks_thresholds": [round(threshold, 2) for threshold in OKS_THRESHOLDS],
        "AP_by_threshold": diagnosis.precision[UNCORRECTED].mean(axis=1).tolist(),
        "corrected_by_threshold": {kind: diagnosis.precision[kind].mean(axis=1).tolist() for kind in CORRECTIONS},
        "background_by_threshold": diagnosis.background_by_threshold.tolist(),
        "missed_by_threshold": diagnosis.missed_by_threshold.tolist(),
        "left_out": diagnosis.num_left_out,
        "full_images": diagnosis.full_images,
        "sizes": [part._asdict() for part in diagnosis.sizes],
    }
    if provenance:
        content["provenance"] = dict(provenance)
    path = Path(output_dir, DIAGNOSIS_FILE)
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path
