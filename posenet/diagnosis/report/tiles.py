"""The images of the gallery with their people as SVG.

Coordinates are whole numbers on a canvas whose longer side is ``CANVAS``, so that lines and marks have the same size on
every image. The page's script reads the ``data-`` attributes of a person: its name (``t0`` ... for annotated people,
``r0`` ... for results, ``m0`` ... for the frames of missed people), its partner, its errors, the size of the annotated
person, and what the list beside the opened image says about it.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from markupsafe import Markup

from posenet.annotations.coco import CocoImage
from posenet.diagnosis.diagnose import Diagnosis
from posenet.diagnosis.error_kinds import KEYPOINT_KINDS, SIZES, size_numbers
from posenet.errors import DataError
from posenet.images import read_image
from posenet.progress_bar import progress_bar
from posenet.skeleton import Skeleton

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


def make_tiles(
    diagnosis: Diagnosis, folder: str | Path | None, min_score: float, *, progress: bool
) -> list[dict[str, Any]]:
    """The images that cost most, the worst first, drawn on those in ``folder``; see ``write_report``.

    A tile has the truth, with the boxes of crowd regions and people without labelled keypoints; the results, with
    frames around missed people; and the kinds of errors with their numbers, the most frequent first.
    """
    losses = image_losses(diagnosis)
    background = diagnosis.matched.results.image[diagnosis.outcome.background[0]]
    num_background = np.bincount(background, minlength=len(losses))
    best_oks = diagnosis.matched.best_oks()
    truth = diagnosis.matched.truth
    tiles = []
    chosen = np.lexsort((-num_background, -losses))[:MAX_IMAGES].tolist()
    for index in progress_bar(chosen, "report", len(chosen), disable=not progress or folder is None):
        image = diagnosis.images[index]
        scale = CANVAS / max(image.width, image.height)
        rows = np.flatnonzero((truth.image == index) & truth.people).tolist()
        people = {row: f"t{number}" for number, row in enumerate(rows)}
        results, badges = _draw_results(diagnosis, index, people, best_oks, scale, min_score)
        jpeg, note = (b"", NO_FOLDER) if folder is None else _read_small_image(Path(folder), image)
        tile = {
            "image": image,
            "width": round(image.width * scale),
            "height": round(image.height * scale),
            "jpeg": base64.b64encode(jpeg).decode(),
            "note": note,
            "people": _draw_truth(diagnosis, index, people, scale),
            "results": results,
            "badges": badges.most_common(),
            "loss": float(losses[index]),
        }
        tiles.append(tile)
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


def _draw_truth(diagnosis: Diagnosis, index: int, people: Mapping[int, str], scale: float) -> Markup:
    """The annotations of an image; ``people`` are the rows and names of those who are to be found."""
    truth = diagnosis.matched.truth
    ignored = np.flatnonzero((truth.image == index) & ~truth.people).tolist()
    parts = [_rect("box ignored", truth.boxes[row] * scale) for row in ignored]
    for row, name in people.items():
        facts = f"{_size(diagnosis, row)}, {truth.labelled[row].sum()} labelled"
        box = _rect("box", truth.boxes[row] * scale)
        limbs = _draw_skeleton(truth.keypoints[row], truth.labelled[row], scale, diagnosis.matched.skeleton)
        parts.append(_person(name, "", [], _size(diagnosis, row), facts, box + limbs))
    return Markup("".join(parts))


def _draw_results(
    diagnosis: Diagnosis,
    index: int,
    people: Mapping[int, str],
    best_oks: np.ndarray,
    scale: float,
    min_score: float,
) -> tuple[Markup, Counter[str]]:
    """The results in an image with frames around missed people, and how many errors of each kind they have.

    ``best_oks`` is the highest OKS of every result of the data set with any person.
    """
    matched, outcome = diagnosis.matched, diagnosis.outcome
    is_background = outcome.background[0]
    parts = []
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
            right = matched.truth.keypoints[person, k] * scale
            shapes += _draw_mark(kind, keypoints[k] * scale if present[k] else right, right)
        if is_background[row]:
            errors.append("background")
            shapes += _frame("background", keypoints[present] * scale)
        badges.update(error.partition(":")[0] for error in errors)
        facts = f"score {matched.results.scores[row]:.3f}, OKS at best {best_oks[row]:.3f}"
        if not outcome.counted[0, row]:
            facts += ", in a crowd region, which does not count"
        is_low = bool(matched.results.scores[row] < min_score)
        size = _size(diagnosis, person) if person >= 0 else ""
        parts.append(_person(f"r{number}", people.get(person, ""), errors, size, facts, shapes, is_low))
    for row, name in people.items():
        if outcome.missed[0, row]:
            badges["missed"] += 1
            frame = _frame("missed", matched.truth.keypoints[row, matched.truth.labelled[row]] * scale)
            parts.append(_person(name.replace("t", "m"), name, ["missed"], _size(diagnosis, row), "", frame))
    return Markup("".join(parts)), badges


def _person(
    name: str, partner: str, errors: Sequence[str], size: str, facts: str, shapes: str, is_low: bool = False
) -> str:
    return (
        f'<g class="person{" low" * is_low}" data-person="{name}" data-partner="{partner}" '
        f'data-errors="{" ".join(errors)}" data-size="{size}" data-facts="{facts}">{shapes}</g>\n'
    )


def _size(diagnosis: Diagnosis, row: int) -> str:
    """The name of the size of an annotated person."""
    return list(SIZES)[int(size_numbers(diagnosis.matched.truth.areas[row]))]


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
