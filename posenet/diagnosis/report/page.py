"""Write the report of a diagnosis: one HTML document from the templates, whose tables and charts need no scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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
from posenet.diagnosis.report.filters import FILTERS, NOTHING, pluralize
from posenet.diagnosis.report.tiles import make_tiles
from posenet.files import write_atomically

REPORT_FILE = "report.html"
STAGES = ("ap", *CORRECTIONS, "inexact")
"""The stages of ``Diagnosis.precision`` by the names of their ``TEXTS``: ``missed`` stands for ``MISSED_AT_50``."""
SHOWN_METRICS = ("AP50", "AP75", "APM", "APL", "AR")
LAYERS = {"truth": "Truth", "result": "Result", "errors": "Errors", "boxes": "Boxes", "pixels": "Image"}
"""Layers of the images that the reader can switch."""


class Cost(NamedTuple):
    """What one kind of error costs."""

    kind: str  # one of ``TEXTS``
    gain: float  # AP that its correction gains, after that of all kinds before it
    alone: float  # AP that its correction alone gains
    found: str  # how often it occurs, in words


def _costs(diagnosis: Diagnosis) -> list[Cost]:
    """The costs of all kinds in the order of correction."""
    aps = [average_precision(curves) for curves in diagnosis.precision.values()]
    alone = [average_precision(curves) - diagnosis.ap for curves in diagnosis.alone_precision.values()]
    alone[-1] -= alone[-2]  # inexact: all who are missed but those missed at OKS 0.50
    people = diagnosis.matched.skeleton.noun(diagnosis.num_people)
    found = {kind: pluralize(count, "keypoint") for kind, count in diagnosis.counts.items()} | {
        "score": NOTHING,
        "background": f"{pluralize(diagnosis.background, 'result')} at OKS 0.50",
        "missed": f"{diagnosis.missed:,} of {diagnosis.num_people:,} {people}",
        "inexact": f"{int(diagnosis.missed_by_threshold[-1]) - diagnosis.missed:,} more at OKS 0.95",
    }
    gains = zip(STAGES[1:], aps, aps[1:], alone)
    return [Cost(kind, after - before, gain_alone, found[kind]) for kind, before, after, gain_alone in gains]


def _worst_keypoints(diagnosis: Diagnosis) -> list[tuple[str, dict[str, int], int]]:
    """Name, counts and number of labelled keypoints of each keypoint; most errors first."""
    rows = [(name, counts, sum(counts.values())) for name, counts in diagnosis.keypoints.items()]
    return sorted(rows, key=lambda row: row[1]["good"] / row[2] if row[2] else 1.0)


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
    environment.filters |= FILTERS
    style, script = (Markup(loader.get_source(environment, name)[0]) for name in ("style.css", "gallery.js"))
    costs = _costs(diagnosis)
    page = environment.get_template("page.html").render(
        diagnosis=diagnosis,
        stages=list(zip(STAGES, diagnosis.precision.values())),
        costs=costs,
        ap_and_gains=[("ap", diagnosis.ap), *((cost.kind, cost.gain) for cost in costs)],
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
