"""Write the report of a diagnosis: one HTML document, whose tables need no scripts, and a gallery as SVG.

Coordinates in the gallery are whole numbers on a canvas whose longer side is ``CANVAS``, so that lines and marks have
the same size on every image. The page's script reads the ``data-`` attributes of a person: its name (``t0`` ... for
annotated people, ``r0`` ... for results), its partner, its errors, the size of the annotated person, and what the list
beside the opened image says about it.
"""

import base64
import json
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from posenet.annotations.coco import CocoImage
from posenet.diagnosis.diagnose import SIZES, Diagnosis, size_numbers
from posenet.diagnosis.keypoint_errors import KEYPOINT_KINDS, LOCALISATION
from posenet.diagnosis.matching import OKS_THRESHOLDS
from posenet.errors import DataError
from posenet.files import write_atomically
from posenet.images import read_image
from posenet.messages import pluralize
from posenet.progress_bar import progress_bar
from posenet.skeleton import Skeleton

REPORT_FILE = "report.html"
NUMBERS_FILE = "diagnosis.json"
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


def write_report(
    diagnosis: Diagnosis,
    output_dir: str | Path,
    images_dir: str | Path | None = None,
    *,
    provenance: Mapping[str, str] | None = None,
    min_score: float = 0.0,
) -> Path:
    """Write ``report.html``, a page that needs neither a network nor other files, and return its path.

    Its numbers are also written to ``diagnosis.json``; see ``Diagnosis.to_dict``.

    Args:
        output_dir: folder of the files, which is created if necessary.
        images_dir: folder of the images. Without it, the people are drawn on a plain ground.
        provenance: where the results come from, from name to value; both files state it.
        min_score: results with a lower score are not drawn at first, as prediction does not show them.
    """
    content = diagnosis.to_dict() | ({"provenance": dict(provenance)} if provenance else {})
    write_atomically(Path(output_dir, NUMBERS_FILE), (json.dumps(content, indent=1) + "\n").encode())
    skeleton = diagnosis.matched.skeleton
    loader = PackageLoader(__package__)
    environment = Environment(
        loader=loader,
        autoescape=True,  # names come from files
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS | {"people": skeleton.count}
    style, script, kinds = (loader.get_source(environment, n)[0] for n in ("style.css", "gallery.js", "kinds.toml"))
    keypoints = [(name, counts, sum(counts.values())) for name, counts in diagnosis.keypoints.items()]
    page = environment.get_template("page.html").render(
        diagnosis=diagnosis,
        costs=_costs(diagnosis),
        keypoints=sorted(keypoints, key=lambda row: row[1]["good"] / row[2] if row[2] else 1.0),  # most errors first
        tiles=_make_tiles(diagnosis, images_dir, min_score),
        provenance=provenance,
        style=Markup(style),
        script=Markup(script),
        skeleton=skeleton,
        person=skeleton.name_objects("Person"),
        people=skeleton.people,
        kinds={
            kind: {name: skeleton.name_objects(text) for name, text in texts.items()}
            for kind, texts in tomllib.loads(kinds).items()
        },
        keypoint_kinds=KEYPOINT_KINDS,
        thresholds=OKS_THRESHOLDS,
        metrics=SHOWN_METRICS,
        shown_kinds=(*LOCALISATION, "background", "missed"),
        sizes=SIZES,
        layers=LAYERS | ({"low": f"Scores below {min_score:g}"} if min_score else {}),
    )
    path = Path(output_dir, REPORT_FILE)
    # A name may hold bytes that are no text.
    write_atomically(path, page.encode(errors="replace"))
    return path


def _costs(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """For all kinds in the order of correction: the AP that it gains in turn and alone, and how often it occurs."""
    people = diagnosis.matched.skeleton.count(diagnosis.num_people)
    missed = diagnosis.missed_by_threshold
    found = {kind: pluralize(count, "keypoint") for kind, count in diagnosis.counts.items()} | {
        "score": NOTHING,
        "background": f"{pluralize(diagnosis.background_by_threshold[0], 'result')} at OKS 0.50",
        "missed": f"{missed[0]} of {people}",
        "inexact": f"{missed[-1] - missed[0]} more at OKS 0.95",
    }
    return [
        {"kind": kind, "gain": gain, "alone": diagnosis.alone[kind] - diagnosis.ap, "found": found[kind]}
        for kind, gain in diagnosis.costs.items()
    ]


FILTERS = {
    "ap": lambda value: NOTHING if value < 0 else f"{value:.3f}",
    "gain": lambda value: f"{round(value, 3) + 0.0:+.3f}",  # no negative zero
    "share": "{:.1%}".format,
    "pluralize": pluralize,
}


def _make_tiles(diagnosis: Diagnosis, folder: str | Path | None, min_score: float) -> list[dict[str, Any]]:
    """The images that cost most, the worst first, drawn on those in ``folder``; see ``write_report``."""
    losses = image_losses(diagnosis)
    background = diagnosis.matched.results.image[diagnosis.outcome.background[0]]
    num_background = np.bincount(background, minlength=len(losses))
    chosen = np.lexsort((-num_background, -losses))[:MAX_IMAGES].tolist()
    tiles = []
    for index in progress_bar(chosen, "report", len(chosen), disable=folder is None):
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
    matched, truth, num_images = diagnosis.matched, diagnosis.matched.truth, len(diagnosis.images)
    people = np.bincount(truth.image[truth.people], minlength=num_images)
    return np.asarray(people - np.bincount(matched.results.image, matched.person_oks, num_images))


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
    """What a tile shows on its image: ``people`` and ``results``, and how often each kind of error occurs (``badges``).

    Each person has the ``data-`` attributes of the page, limbs and dots as SVG paths, ``rects`` (boxes and frames, with
    their class), and ``marks`` of wrong keypoints, with a line to where each should be.
    """
    matched, outcome, truth = diagnosis.matched, diagnosis.outcome, diagnosis.matched.truth
    people: dict[int, dict[str, Any]] = {}
    ignored = []
    for row in np.flatnonzero(truth.image == index).tolist():
        box = truth.boxes[row] * scale
        if not truth.people[row]:  # a crowd region, or a person without labelled keypoints
            ignored.append(("box ignored", *_rounded(box)))
            continue
        labelled, size = truth.labelled[row], SIZES[size_numbers(truth.areas[row])]
        people[row] = {
            "name": f"t{len(people)}",
            "partner": "",
            "errors": ["missed"] * int(outcome.missed[0, row]),
            "size": size,
            "facts": f"{size}, {labelled.sum()} labelled",
            "is_low": False,
            "rects": [("box", *_rounded(box))],
            "marks": [],
        } | _draw_skeleton(truth.keypoints[row], labelled, scale, matched.skeleton)
        if outcome.missed[0, row]:
            people[row]["rects"].append(_frame("missed", truth.keypoints[row, labelled] * scale))
    results: list[dict[str, Any]] = []
    for number, row in enumerate(np.flatnonzero(matched.results.image == index).tolist()):
        keypoints, person = matched.results.keypoints[row], int(matched.person[row])
        present = keypoints[:, 2] > 0
        if not present.any():  # some files have a 0 in every third value
            present = ~present
        wrong = {k: KEYPOINT_KINDS[kind] for k, kind in enumerate(matched.kinds[row]) if kind > 0}  # 0 is good
        right = truth.keypoints[person]
        ends = {k: (keypoints[k] if present[k] else right[k], right[k]) for k in wrong}
        score = matched.results.scores[row]
        facts = f"score {score:.3f}, OKS {matched.person_oks[row]:.3f}"
        if not outcome.counted[0, row]:
            facts += ", in a crowd region, which does not count"
        result = {
            "name": f"r{number}",
            "partner": people[person]["name"] if person >= 0 else "",
            "errors": [f"{kind}:{k}" for k, kind in wrong.items()],
            "size": people[person]["size"] if person >= 0 else "",
            "facts": facts,
            "is_low": score < min_score,
            "rects": [],
            "marks": [(kind, *_rounded(scale * np.array(ends[k])[:, :2].ravel())) for k, kind in wrong.items()],
        } | _draw_skeleton(keypoints, present, scale, matched.skeleton)
        if outcome.background[0, row]:
            result["errors"].append("background")
            result["rects"].append(_frame("background", keypoints[present] * scale))
        results.append(result)
    errors = (error for person in [*results, *people.values()] for error in person["errors"])
    badges = Counter(error.partition(":")[0] for error in errors).most_common()
    return {"people": list(people.values()), "rects": ignored, "results": results, "badges": badges}


def _draw_skeleton(keypoints: np.ndarray, present: np.ndarray, scale: float, skeleton: Skeleton) -> dict[str, str]:
    """The limbs and dots of (F, 3) keypoints, of which (F,) are present, as SVG paths."""
    points = {name: xy for name, xy, there in zip(skeleton.file_keypoints, keypoints[:, :2] * scale, present) if there}
    dots = "".join("M{} {}h0".format(*_rounded(xy)) for xy in points.values())
    for name, (a, b) in skeleton.derived.items():
        if a in points and b in points:
            points[name] = (points[a] + points[b]) / 2
    ends = [(*points[a], *points[b]) for a, b in skeleton.drawn or skeleton.parts if a in points and b in points]
    return {"limbs": "".join("M{} {}L{} {}".format(*_rounded(limb)) for limb in ends), "dots": dots}


def _frame(kind: str, keypoints: np.ndarray) -> tuple[str | int, ...]:
    """A frame around keypoints (n, 3)."""
    low, high = keypoints[:, :2].min(axis=0) - MARGIN, keypoints[:, :2].max(axis=0) + MARGIN
    return (f"frame {kind}", *_rounded([*low, *(high - low)]))


def _rounded(numbers: Sequence[float] | np.ndarray) -> list[int]:
    return [round(number) for number in numbers]
