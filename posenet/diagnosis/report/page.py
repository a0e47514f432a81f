"""Write the report of a diagnosis: one HTML document from the templates, whose tables and charts need no scripts.

Charts have percentages of their width and height as coordinates, so that they fit any screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from posenet.diagnosis.average_precision import average_precision
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.error_kinds import (
    CORRECTIONS,
    KEYPOINT_KINDS,
    LOCALISATION,
    OKS_THRESHOLDS,
    SIZES,
    TEXTS,
    Kind,
)
from posenet.diagnosis.report.tiles import make_tiles
from posenet.files import write_atomically
from posenet.skeleton.skeleton import noun_of

REPORT_FILE = "report.html"
STAGES = ("ap", *CORRECTIONS, "inexact")
"""The stages of ``Diagnosis.precision`` by the names of their ``TEXTS``: ``missed`` stands for ``MISSED_AT_50``."""
SHOWN_METRICS = ("AP50", "AP75", "APM", "APL", "AR")
LAYERS = {"truth": "Truth", "result": "Result", "errors": "Errors", "boxes": "Boxes", "pixels": "Image"}
"""Layers of the images that the reader can switch."""
NOTHING = "\N{EN DASH}"
"""Stands for a value that there was nothing to compute from."""


def write_report(
    diagnosis: Diagnosis,
    output_dir: str | Path,
    images_dir: str | Path | None = None,
    *,
    provenance: Mapping[str, str] | None = None,
    min_score: float = 0.0,
    progress: bool = True,
) -> Path:
    """Write ``report.html``, a page that needs neither a network nor other files, and return its path.

    Args:
        output_dir: folder of the page, which is created if necessary.
        images_dir: folder of the images. Without it, the people are drawn on a plain ground.
        provenance: where the results come from, from name to value; the page states it.
        min_score: results with a lower score are not drawn at first, as prediction does not show them.
    """
    skeleton = diagnosis.matched.skeleton
    loader = PackageLoader(__package__)
    environment = Environment(
        loader=loader,
        autoescape=True,  # names come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS | {"people": lambda count: f"{count:,} {noun_of(count, skeleton.category)}"}
    style, script = (Markup(loader.get_source(environment, name)[0]) for name in ("style.css", "gallery.js"))
    costs = _costs(diagnosis)
    page = environment.get_template("page.html").render(
        diagnosis=diagnosis,
        stages=list(zip(STAGES, diagnosis.precision.values())),
        costs=costs,
        ap_and_gains=[("ap", diagnosis.ap), *((cost["kind"], cost["gain"]) for cost in costs)],
        keypoints=_worst_keypoints(diagnosis),
        tiles=make_tiles(diagnosis, images_dir, min_score, progress=progress),
        provenance=provenance,
        style=style,
        script=script,
        skeleton=skeleton,
        person=skeleton.name_objects("Person"),
        people=skeleton.people,
        kinds={kind: Kind(*map(skeleton.name_objects, texts)) for kind, texts in TEXTS.items()},
        keypoint_kinds=KEYPOINT_KINDS,
        thresholds=OKS_THRESHOLDS,
        metrics=SHOWN_METRICS,
        shown_kinds=(*LOCALISATION, "background", "missed"),
        sizes=list(SIZES),
        layers=LAYERS | ({"low": f"Scores below {min_score:g}"} if min_score else {}),
    )
    path = Path(output_dir, REPORT_FILE)
    # A name may hold bytes that are no text.
    write_atomically(path, page.encode(errors="replace"))
    return path


def _costs(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """For all kinds in the order of correction: the AP that it gains in turn and alone, and how often it occurs."""
    aps = [average_precision(curves) for curves in diagnosis.precision.values()]
    alone = [average_precision(curves) - diagnosis.ap for curves in diagnosis.alone_precision.values()]
    alone[-1] -= alone[-2]  # inexact: all who are missed but those missed at OKS 0.50
    people = noun_of(diagnosis.num_people, diagnosis.matched.skeleton.category)
    missed = diagnosis.missed_by_threshold
    found = {kind: pluralize(count, "keypoint") for kind, count in diagnosis.counts.items()} | {
        "score": NOTHING,
        "background": f"{pluralize(diagnosis.background_by_threshold[0], 'result')} at OKS 0.50",
        "missed": f"{missed[0]:,} of {diagnosis.num_people:,} {people}",
        "inexact": f"{missed[-1] - missed[0]:,} more at OKS 0.95",
    }
    return [
        {"kind": kind, "gain": after - before, "alone": gain_alone, "found": found[kind]}
        for kind, before, after, gain_alone in zip(STAGES[1:], aps, aps[1:], alone)
    ]


def _worst_keypoints(diagnosis: Diagnosis) -> list[tuple[str, dict[str, int], int]]:
    """Name, counts and number of labelled keypoints of each keypoint; most errors first."""
    rows = [(name, counts, sum(counts.values())) for name, counts in diagnosis.keypoints.items()]
    return sorted(rows, key=lambda row: row[1]["good"] / row[2] if row[2] else 1.0)


def format_ap(value: float) -> str:
    return NOTHING if value < 0 else f"{value:.3f}"


def format_gain(value: float) -> str:
    """A difference with its sign."""
    text = f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")
    return text[1:] if float(text[1:]) == 0 else text


def format_share(value: float) -> str:
    return "<0.1 %" if 0 < value < 0.001 else f"{100 * value:.1f} %"


def pluralize(count: int, noun: str) -> str:
    """``1,234 images``, with a separator of thousands."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _percent(value: float) -> str:
    """A coordinate: where a value is between 0 (0 %) and 1 (100 %)."""
    return f"{100 * value:.4g}%"


def _stack(values: Iterable[tuple[str, float]], total: float = 1.0) -> list[tuple[str, str, str, float]]:
    """The parts of a stacked bar: kind, start and width as coordinates, and the share of ``total``."""
    parts = []
    start = 0.0
    for kind, value in values:
        share = max(value, 0.0) / total if total > 0 else 0.0
        parts.append((kind, _percent(start), _percent(share), share))
        start += share
    return parts


def _area_path(values: np.ndarray) -> str:
    """The area below values from 0 to 1 at equal distances, as a path in a frame of 100 by 100."""
    xs = np.linspace(0, 100, len(values))
    points = "L".join(f"{x:.4g} {100 - 100 * y:.4g}" for x, y in zip(xs, values))
    return f"M0 100L{points}L100 100Z"


FILTERS = {
    "ap": format_ap,
    "gain": format_gain,
    "count": "{:,}".format,
    "share": format_share,
    "pluralize": pluralize,
    "percent": _percent,
    "stack": _stack,
    "area": _area_path,
}
