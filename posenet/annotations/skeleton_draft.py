"""Drafts a skeleton from a COCO keypoint file: names and parts from its categories, the layout from its people."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import DEFAULT_SIGMA, pieces

LEAST_EXAMPLES = 20
"""Annotations that a layout is measured on at least."""
LEAST_SPREAD = 0.1
ROUNDS = 5
"""How often the mean shape and the examples' sizes are measured on each other."""

_SIDES = {"left": "right", "Left": "Right", "LEFT": "RIGHT", "l": "r", "L": "R"}
# A word, or a letter on its own, or one before or behind another in the style of Lsho, LEye, lEye and eyeL.
_SIDE = re.compile("left|Left|LEFT|(?<![A-Za-z])(?:[lL](?![A-Za-z])|L(?=[A-Za-z])|l(?=[A-Z]))|(?<=[a-z])L(?![A-Za-z])")


@dataclass(frozen=True)
class Draft:
    """A drafted skeleton.

    Attributes:
        category: name of the category that it describes.
        remarks: what to look at, by key of the skeleton file.
    """

    skeleton: Skeleton
    category: str
    remarks: dict[str, str]


def draft_skeleton(annotations: str | Path, category: str | None = None, bridges: bool = True) -> Draft:
    """Describe the keypoints of a COCO annotation file as a skeleton.

    Parts are the category's ``skeleton``, made symmetric, and where that leaves keypoints unjoined the shortest
    connections. Left and right come from the names. The OKS constants are ``DEFAULT_SIGMA``.

    Args:
        category: name of the category; may be left out where all that have keypoints have the same ones.
        bridges: add parts between keypoints that are two parts apart, such as shoulder and wrist. Drawings leave
            them out; they hold an object together whose keypoint between them is hidden.

    Raises:
        DataError: not a COCO keypoint file, or a category that cannot be used.
    """
    try:
        document = json.loads(Path(annotations).read_bytes())
        chosen = _choose(document["categories"], category, annotations)
        names = tuple(str(name) for name in chosen["keypoints"])
        alike = {other["id"] for other in document["categories"] if other.get("keypoints") == chosen["keypoints"]}
        people = [entry for entry in document.get("annotations") or [] if entry["category_id"] in alike]
        joints = _joints(people, len(names))
        given = _given_parts(chosen, names)
    except OSError as error:
        raise DataError(f"cannot read annotations {annotations}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise DataError(
            f"{annotations} is not a COCO keypoint file ({reason}); its categories must name the keypoints"
        ) from error
    sides = pair_sides(names)
    parts = _symmetric(given, sides)
    extra = _joining(names, parts, sides, joints)
    outline = (*parts, *extra)
    bridged = _bridges(names, outline) if bridges else ()
    try:
        skeleton = Skeleton(
            keypoints=names,
            parts=(*outline, *bridged),
            left_right=sides,
            derived={},
            file_keypoints=names,
            file_names=names,
            sigmas=_sigmas(names),
            layout=measure_layout(names, joints),
            drawn=outline if bridged else (),
        )
    except ValueError as error:
        raise DataError(f"{annotations}: category {chosen['name']}: {error}; correct its keypoints") from error
    remarks = _remarks(skeleton, len(parts) - len(given), len(extra), len(bridged), len(joints))
    return Draft(skeleton, str(chosen["name"]), remarks)


def pair_sides(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Pairs of a left name and the right one that differs from it in that word alone, such as L_eye and R_eye."""
    pairs = []
    for name in names:
        for word in _SIDE.finditer(name):
            twin = name[: word.start()] + _SIDES[word[0]] + name[word.end() :]
            if twin in names:
                pairs.append((name, twin))
                break
    return tuple(pairs)


def measure_layout(names: tuple[str, ...], joints: np.ndarray) -> dict[str, tuple[float, float]]:
    """``Skeleton.layout`` from (P, K, 3) annotated keypoints; empty where there are too few.

    Every example is moved and scaled to fit the mean shape, the mean shape is measured anew, and so on. The unit is
    such that the whole body is as large as COCO's, in the lengths of whose torso the decoder's constants are given.
    """
    labelled = joints[..., 2] > 0
    useful = labelled.sum(1) >= max(3, len(names) // 2)
    weight, place = labelled[useful].astype(float), joints[useful, :, 0] + 1j * joints[useful, :, 1]
    if len(place) < LEAST_EXAMPLES or not (weight.sum(0) >= LEAST_EXAMPLES // 2).all():
        return {}
    centre, size = _mean(place, weight, 1), _reach(place, weight)
    for _ in range(ROUNDS):
        fitted = (place - centre) / size
        shape = np.broadcast_to(_mean(fitted, weight, 0), fitted.shape)
        # Only what is labelled in an example tells where it lies and how large it is.
        size = _reach(place, weight) / _reach(shape, weight)
        centre = _mean(place, weight, 1) - size * _mean(shape, weight, 1)
    height = shape[0].imag
    spread = np.sqrt(_mean(np.abs(fitted - 1j * height) ** 2, weight, 0)[0])
    unit = _body_size(*np.array(list(COCO.layout.values())).T) / max(_body_size(height, spread), 1e-6)
    return {
        name: (round(float(h), 2), round(max(float(s), LEAST_SPREAD), 2))
        for name, h, s in zip(names, (height - height.mean()) * unit, spread * unit)
    }


def _mean(values: np.ndarray, weight: np.ndarray, axis: int) -> np.ndarray:
    return (values * weight).sum(axis, keepdims=True) / weight.sum(axis, keepdims=True)


def _reach(place: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(P, 1) root mean square distance of the labelled keypoints from their middle."""
    square = np.abs(place - _mean(place, weight, 1)) ** 2
    return np.maximum(np.sqrt(_mean(square, weight, 1)), 1e-6)


def _body_size(height: np.ndarray, spread: np.ndarray) -> float:
    """The same of a body of which the layout is known."""
    return float(np.sqrt(height.var() + (spread**2).mean()))


def _sigmas(names: tuple[str, ...]) -> tuple[float, ...]:
    return COCO.sigmas if names == COCO.file_names else (DEFAULT_SIGMA,) * len(names)


def _choose(categories: list[dict[str, Any]], wanted: str | None, source: str | Path) -> dict[str, Any]:
    found = [c for c in categories if c.get("keypoints") and wanted in (None, c["name"])]
    if not found:
        names = ", ".join(str(c.get("name")) for c in categories if c.get("keypoints")) or "none"
        raise DataError(
            f"{source} has no category {wanted or ''} with keypoints (those that have some: {names}); "
            "name another by --category"
            if wanted
            else f"{source} has no category with keypoints; give a COCO keypoint file"
        )
    if any(c["keypoints"] != found[0]["keypoints"] for c in found):
        raise DataError(
            f"{source} has categories with different keypoints "
            f"({', '.join(str(c['name']) for c in found)}); choose one by --category"
        )
    return found[0]


def _joints(people: list[dict[str, Any]], count: int) -> np.ndarray:
    """(P, K, 3) float64 of the annotations that have keypoints."""
    rows = [entry["keypoints"] for entry in people if entry.get("keypoints") and not entry.get("iscrowd")]
    return np.array(rows, np.float64).reshape(len(rows), count, 3)


def _given_parts(category: dict[str, Any], names: tuple[str, ...]) -> list[tuple[str, str]]:
    """The category's ``skeleton``; COCO counts from 1, others from 0."""
    pairs = [(int(a), int(b)) for a, b in category.get("skeleton") or []]
    first = 0 if any(0 in pair for pair in pairs) else 1
    if any(not first <= end < len(names) + first for pair in pairs for end in pair):
        raise ValueError("its skeleton joins keypoints that it does not have")
    parts = {frozenset((a, b)): (names[a - first], names[b - first]) for a, b in pairs if a != b}
    return list(parts.values())


def _symmetric(parts: list[tuple[str, str]], sides: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """The parts and those of their mirror images that are missing."""
    mirror = dict(sides) | {right: left for left, right in sides}
    result = {frozenset(part): part for part in parts}
    for a, b in parts:
        twin = (mirror.get(a, a), mirror.get(b, b))
        result.setdefault(frozenset(twin), twin)
    return list(result.values())


def _joining(
    names: tuple[str, ...], parts: list[tuple[str, str]], sides: tuple[tuple[str, str], ...], joints: np.ndarray
) -> list[tuple[str, str]]:
    """The shortest parts, symmetric, that join all keypoints; with nothing to measure, in the order of the names."""
    place, labelled = joints[..., :2], joints[..., 2] > 0
    distance = {}
    for a, b in itertools.combinations(range(len(names)), 2):
        both = labelled[:, a] & labelled[:, b]
        lengths = np.linalg.norm(place[both, a] - place[both, b], axis=-1)
        distance[names[a], names[b]] = float(np.median(lengths)) if len(lengths) else np.inf
    extra: list[tuple[str, str]] = []
    for pair in sorted(distance, key=distance.__getitem__):
        groups = pieces(names, [*parts, *extra])
        if len(groups) == 1:
            break
        if not any(pair[0] in group and pair[1] in group for group in groups):
            extra += _symmetric([pair], sides)
    return extra


def _bridges(names: tuple[str, ...], parts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The pairs of keypoints that no part joins, but two parts through a third keypoint."""
    beside: dict[str, set[str]] = {name: set() for name in names}
    for a, b in parts:
        beside[a].add(b)
        beside[b].add(a)
    return tuple((a, b) for a, b in itertools.combinations(names, 2) if b not in beside[a] and beside[a] & beside[b])


def _remarks(skeleton: Skeleton, mirrored: int, joining: int, bridged: int, people: int) -> dict[str, str]:
    parts = ["The connections that the network learns, each also in its mirror image."]
    if mirrored:
        parts.append(f"{mirrored} mirror images were missing in the annotation file's skeleton and have been added.")
    if joining:
        parts.append(f"The last {joining} of those drawn join what was not joined; see whether others suit better.")
    if bridged:
        parts.append(f"The last {bridged} bridge two others: with a second way around, a hidden keypoint parts nobody.")
    sigmas = "OKS constants, how exactly a keypoint can be placed. "
    if skeleton.sigmas == COCO.sigmas:
        sigmas += "These are COCO's, whose keypoints have the same names."
    else:
        sigmas += (
            f"{DEFAULT_SIGMA} is only a default: annotate some images twice\nand take, for every keypoint, "
            "the root mean square of distance / sqrt(area of the object)."
        )
    sides = (
        "Left and right, guessed from the names: a mirrored image swaps them. See that none is missing."
        if skeleton.left_right
        else "No keypoint has left or right in its name, so a mirrored image swaps none."
    )
    layout = (
        "Where keypoints lie in somebody upright: height (down is positive) and spread, measured on the "
        "annotations.\nIt helps to group keypoints; delete the table where objects have no usual position."
    )
    remarks = {
        "keypoints": "As the annotation file names and orders them.",
        "parts": "\n".join(parts),
        "left_right": sides,
        "drawn": "What drawings show of the parts.",
        "sigmas": sigmas,
        "layout": layout,
    }
    if not skeleton.left_right:
        remarks["parts"] += "\n" + sides
    if not skeleton.layout:
        remarks["sigmas"] = (
            f"No layout: only {people} annotations, or some keypoints hardly ever labelled. It is not needed.\n{sigmas}"
        )
    return remarks
