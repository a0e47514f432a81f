"""Write the report of a diagnosis: one HTML document, whose tables and charts need no scripts, and a gallery as SVG.

Charts have percentages of their width and height as coordinates, so that they fit any screen. Coordinates in the
gallery are whole numbers on a canvas whose longer side is ``CANVAS``, so that lines and marks have the same size on
every image. The page's script reads the ``data-`` attributes of a person: its name (``t0`` ... for annotated people,
``r0`` ... for results, ``m0`` ... for the frames of missed people), its partner, its errors, the size of the annotated
person, and what the list beside the opened image says about it.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from posenet.annotations.coco import CocoImage
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.keypoint_errors import CORRECTIONS, KEYPOINT_KINDS, LOCALISATION
from posenet.diagnosis.matching import OKS_THRESHOLDS, SIZES, average_precision, size_numbers
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images import read_image
from posenet.progress_bar import progress_bar
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton import noun_of

REPORT_FILE = "report.html"
STAGES = ("ap", *CORRECTIONS, "inexact")
"""The stages of ``Diagnosis.precision`` by the names of their ``TEXTS``: ``missed`` stands for ``MISSED_AT_50``."""
SHOWN_METRICS = ("AP50", "AP75", "APM", "APL", "AR")
LAYERS = {"truth": "Truth", "result": "Result", "errors": "Errors", "boxes": "Boxes", "pixels": "Image"}
"""Layers of the images that the reader can switch."""
NOTHING = "\N{EN DASH}"
"""Stands for a value that there was nothing to compute from."""
MAX_IMAGES = 400
"""Images in the gallery; those that cost most."""
IMAGE_SIDE = 480
JPEG_QUALITY = 75
"""Longer side in pixels and quality of the images, so that a page has about 25 MB at most."""
NO_FOLDER = "The report was written without the images (--images), so the keypoints stand on a plain ground."
CANVAS = 2000
"""Longer side of the canvas of an image."""
MARGIN = 40
"""Distance of the frame around a person from the keypoints."""


class Kind(NamedTuple):
    """How the page names a kind and explains it."""

    label: str
    meaning: str
    verdict: str = ""
    """The headline if this kind costs most."""
    remedy: str = ""
    """What to try."""


TEXTS = {
    "ap": Kind("AP", "The average precision of the results as they are."),
    "good": Kind("Good", "The keypoint is where it should be: its similarity is at least 0.85."),
    "miss": Kind(
        "Misplaced",
        "A keypoint is far from where it should be, and on that of no other person either.",
        "Misplaced keypoints cost most",
        "Train longer, or on more images like those below; see which keypoints and groups of people have most of them.",
    ),
    "swap": Kind(
        "Swap",
        "A keypoint lies on the same or the mirrored keypoint of another person.",
        "Keypoints on other people cost most",
        "Train on more images of people that overlap, or predict at a larger input size.",
    ),
    "inversion": Kind(
        "Inversion",
        "Left and right of the same person are exchanged.",
        "Left and right exchanged cost most",
        "Check left and right in the training labels (posenet annotations lint), then train longer.",
    ),
    "jitter": Kind(
        "Jitter",
        "A keypoint is near the right place but not exact: its similarity is 0.5 to 0.85.",
        "Keypoints that are a little off cost most",
        "Predict at a larger input size; then train longer or with more stacks.",
    ),
    "score": Kind(
        "Score",
        "The scores rank the results in another order than their true OKS.",
        "Badly ranked results cost most",
        "Look at results with high scores where no person is, and at good ones with low scores.",
    ),
    "background": Kind(
        "Background",
        "A result matches no person. It costs nothing in turn, because corrected scores rank it last.",
        "Results that match no person cost most",
        "Look whether they are people that are not annotated; else train on images with such backgrounds.",
    ),
    "missed": Kind(
        "Missed person",
        "No result matches the person even at OKS 0.50.",
        "Missed people cost most",
        "See which sizes and groups are missed; small people need a larger input size.",
    ),
    "inexact": Kind(
        "Inexact",
        "A result matches the person at OKS 0.50, but not at stricter thresholds, even after the corrections: good "
        "keypoints are not exact either.",
        "Inexact keypoints cost most",
        "Predict at a larger input size; then train longer or with more stacks.",
    ),
}
"""Texts of the kinds on the page, where ``missed`` are the people missed at OKS 0.50, and the rest is ``inexact``."""


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
    keypoints = [(name, counts, sum(counts.values())) for name, counts in diagnosis.keypoints.items()]
    page = environment.get_template("page.html").render(
        diagnosis=diagnosis,
        stages=list(zip(STAGES, diagnosis.precision.values())),
        costs=costs,
        ap_and_gains=[("ap", diagnosis.ap), *((cost["kind"], cost["gain"]) for cost in costs)],
        keypoints=sorted(keypoints, key=lambda row: row[1]["good"] / row[2] if row[2] else 1.0),  # most errors first
        tiles=_make_tiles(diagnosis, images_dir, min_score, progress=progress),
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


def _make_tiles(
    diagnosis: Diagnosis, folder: str | Path | None, min_score: float, *, progress: bool
) -> list[dict[str, Any]]:
    """The images that cost most, the worst first, drawn on those in ``folder``; see ``write_report``."""
    losses = image_losses(diagnosis)
    background = diagnosis.matched.results.image[diagnosis.outcome.background[0]]
    num_background = np.bincount(background, minlength=len(losses))
    chosen = np.lexsort((-num_background, -losses))[:MAX_IMAGES].tolist()
    tiles = []
    for index in progress_bar(chosen, "report", len(chosen), disable=not progress or folder is None):
        image = diagnosis.images[index]
        scale = CANVAS / max(image.width, image.height)
        jpeg, note = (b"", NO_FOLDER) if folder is None else _read_small_image(Path(folder), image)
        tile = {
            "image": image,
            "width": round(image.width * scale),
            "height": round(image.height * scale),
            "jpeg": base64.b64encode(jpeg).decode(),
            "note": note,
            "loss": float(losses[index]),
        }
        tiles.append(tile | _draw_people(diagnosis, index, scale, min_score))
    return tiles


def image_losses(diagnosis: Diagnosis) -> np.ndarray:
    """(images,) what each image costs: the sum, over its people, of 1 - OKS with their results at OKS 0.1."""
    matched, truth = diagnosis.matched, diagnosis.matched.truth
    is_match = matched.pairs.person == matched.person[matched.pairs.result]
    oks = np.zeros(len(truth.areas))
    oks[matched.pairs.person[is_match]] = matched.oks[is_match]
    num_images = len(diagnosis.images)
    people = np.bincount(truth.image[truth.people], minlength=num_images)
    return np.asarray(people - np.bincount(truth.image, weights=oks, minlength=num_images))


def _read_small_image(folder: Path, image: CocoImage) -> tuple[bytes, str]:
    """A small copy as JPEG, and a note where there is none, or of another size."""
    try:
        pixels = read_image(folder / image.file_name)
    except DataError:
        return b"", f"{image.file_name} is missing or cannot be read, so the keypoints stand on a plain ground."
    height, width = pixels.shape[:2]
    note = ""
    if (height, width) != (image.height, image.width):
        note = f"The file has {width} x {height} pixels, but the annotations say {image.width} x {image.height}."
    factor = min(1.0, IMAGE_SIDE / max(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1].tobytes(), note


def _draw_people(diagnosis: Diagnosis, index: int, scale: float, min_score: float) -> dict[str, Any]:
    """What a tile shows on its image.

    ``people``: the truth, with the boxes of crowd regions and people without labelled keypoints. ``results``, with
    frames around missed people. ``badges``: the kinds of errors with their numbers, the most frequent first.
    """
    matched, outcome, truth = diagnosis.matched, diagnosis.outcome, diagnosis.matched.truth
    in_image = truth.image == index
    people = {row: f"t{number}" for number, row in enumerate(np.flatnonzero(in_image & truth.people).tolist())}
    sizes = {row: list(SIZES)[int(size_numbers(truth.areas[row]))] for row in people}
    shown = [_rect("box ignored", truth.boxes[row] * scale) for row in np.flatnonzero(in_image & ~truth.people)]
    for row, name in people.items():
        facts = f"{sizes[row]}, {truth.labelled[row].sum()} labelled"
        limbs = _draw_skeleton(truth.keypoints[row], truth.labelled[row], scale, matched.skeleton)
        shown.append(_person(name, "", [], sizes[row], facts, _rect("box", truth.boxes[row] * scale) + limbs))
    results = []
    badges: Counter[str] = Counter()
    for number, row in enumerate(range(*np.searchsorted(matched.results.image, [index, index + 1]).tolist())):
        keypoints, person = matched.results.keypoints[row], int(matched.person[row])
        present = keypoints[:, 2] > 0
        if not present.any():  # some files have a 0 in every third value
            present = ~present
        wrong = {k: KEYPOINT_KINDS[kind] for k, kind in enumerate(matched.kinds[row]) if kind > 0}  # 0 is good
        errors = [f"{kind}:{k}" for k, kind in wrong.items()]
        shapes = _draw_skeleton(keypoints, present, scale, matched.skeleton)
        for k, kind in wrong.items():
            right = truth.keypoints[person, k] * scale
            shapes += _draw_mark(kind, keypoints[k] * scale if present[k] else right, right)
        if outcome.background[0, row]:
            errors.append("background")
            shapes += _frame("background", keypoints[present] * scale)
        badges.update(error.partition(":")[0] for error in errors)
        score = matched.results.scores[row]
        facts = f"score {score:.3f}, OKS at best {matched.best_oks[row]:.3f}"
        if not outcome.counted[0, row]:
            facts += ", in a crowd region, which does not count"
        partner, size = people.get(person, ""), sizes.get(person, "")
        results.append(_person(f"r{number}", partner, errors, size, facts, shapes, bool(score < min_score)))
    for row, name in people.items():
        if outcome.missed[0, row]:
            badges["missed"] += 1
            frame = _frame("missed", truth.keypoints[row, truth.labelled[row]] * scale)
            results.append(_person(name.replace("t", "m"), name, ["missed"], sizes[row], "", frame))
    return {"people": Markup("".join(shown)), "results": Markup("".join(results)), "badges": badges.most_common()}


def _person(
    name: str, partner: str, errors: Sequence[str], size: str, facts: str, shapes: str, is_low: bool = False
) -> str:
    return (
        f'<g class="person{" low" * is_low}" data-person="{name}" data-partner="{partner}" '
        f'data-errors="{" ".join(errors)}" data-size="{size}" data-facts="{facts}">{shapes}</g>\n'
    )


def _draw_skeleton(keypoints: np.ndarray, present: np.ndarray, scale: float, skeleton: Skeleton) -> str:
    """The limbs and dots of (F, 3) keypoints, of which (F,) are present."""
    scaled = np.rint(keypoints[:, :2] * scale).astype(int).tolist()
    points = {name: xy for name, xy, there in zip(skeleton.file_keypoints, scaled, present.tolist()) if there}
    dots = "".join(f"M{x} {y}h0" for x, y in points.values())
    for name, (a, b) in skeleton.derived.items():
        if a in points and b in points:
            points[name] = [(points[a][0] + points[b][0]) // 2, (points[a][1] + points[b][1]) // 2]
    ends = [(points[a], points[b]) for a, b in skeleton.drawn or skeleton.parts if a in points and b in points]
    limbs = "".join(f"M{a[0]} {a[1]}L{b[0]} {b[1]}" for a, b in ends)
    return f'<path class="limbs" d="{limbs}"/><path class="dots" d="{dots}"/>'


def _draw_mark(kind: str, at: np.ndarray, right: np.ndarray) -> str:
    """The sign of a wrong keypoint, and a line to where it should be."""
    x, y, right_x, right_y = np.rint([*at[:2], *right[:2]]).astype(int).tolist()
    return (
        f'<g class="mark {kind}"><path d="M{x} {y}L{right_x} {right_y}"/>'
        f'<g transform="translate({x} {y})"><use href="#{kind}"/></g></g>'
    )


def _rect(kind: str, box: np.ndarray) -> str:
    x, y, width, height = np.rint(box).astype(int).tolist()
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'


def _frame(kind: str, keypoints: np.ndarray) -> str:
    """A frame around keypoints (n, 3)."""
    low, high = keypoints[:, :2].min(axis=0) - MARGIN, keypoints[:, :2].max(axis=0) + MARGIN
    return _rect(f"frame {kind}", np.concatenate([low, high - low]))
