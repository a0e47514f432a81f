"""Draft a skeleton from a COCO keypoint file: names and parts from its categories, the layout from its people."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posenet.annotations.coco import AnnotationFile, Category, category_edges
from posenet.annotations.left_right import Pair, pair_by_flip_idx
from posenet.annotations.reader import read_annotation_file
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton import twins
from posenet.skeleton.skeleton_file import DEFAULT_SIGMA, connected_components

MIN_EXAMPLES = 20
"""Smallest number of annotations for measuring a layout."""
MIN_SPREAD = 0.1
"""Smallest spread of a keypoint in a layout, in lengths of the torso."""
FITTING_ROUNDS = 5
"""Number of times that the examples are fitted to the mean shape and the mean shape is computed again."""

COMMENTS = {
    "keypoints": "With the names and in the order of the annotation file.",
    "parts": "The connections that the network learns: those of the annotation file, with their mirror images;\n"
    "then the shortest ones that connect keypoints which were apart, check them; then bridges over one keypoint:\n"
    "they connect a body when a keypoint is hidden.",
    "left_right": "From the names or flip_idx: a mirrored image swaps them. Check that none is missing.",
    "drawn": "The parts that drawings show.",
    "sigmas": "OKS constants: how precisely annotators place each keypoint. Those of a person with COCO's names are\n"
    f"COCO's. {DEFAULT_SIGMA} is only a default: annotate some images twice and compute, for every keypoint, the root\n"
    "mean square of distance / sqrt(area of the object).",
    "layout": "Keypoints in an upright person or object: height (down is positive) and spread, measured on the\n"
    "annotations. They help to group keypoints. Delete the table if objects have no usual position.",
}
"""Comments of the skeleton file, by key: the source of a value and what to check."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SkeletonDraft:
    """A drafted skeleton."""

    skeleton: Skeleton
    category: str  # name of the category that it describes
    comments: dict[str, str]  # for the keys of the skeleton file: the source of a value and what to check


def draft_skeleton(annotations: str | Path, category: str | None = None) -> SkeletonDraft:
    """Describe the keypoints of a COCO annotation file as a skeleton.

    The parts are the edges of the category's ``skeleton``, their mirror images, and the shortest parts that connect all
    keypoints. Parts between keypoints that are two of these apart, such as shoulder and wrist, are added: they connect
    a person when the keypoint between them is hidden, and drawings leave them out. Left and right come from the names,
    and for others from the ``flip_idx`` of a YOLO-pose set. The OKS constants are COCO's for a person's keypoints with
    COCO's names, else ``DEFAULT_SIGMA``.

    Args:
        category: its name, optional if all with keypoints have the same ones; ``DataError`` if it cannot be used.
    """
    file = read_annotation_file(annotations, required=())
    file.adjustments.refuse(annotations, only=("no-keypoints", "keypoint-values"))
    chosen = _choose_category(file, category)
    names = chosen.keypoints or ()
    joints = file.keypoints[file.groups_of_names()[names] & file.is_labelled_person, : len(names)]
    left_right = pair_by_flip_idx(names, chosen.flip_idx)
    num_kinds = 1 if category else sum(other.keypoints == names for other in file.parsed_categories)
    try:
        parts = _with_mirror_images(category_edges(chosen), left_right)
        drawn = (*parts, *_joining_parts(names, parts, left_right, joints))
        bridging = _bridging_parts(names, drawn)
        skeleton = Skeleton(
            keypoints=names,
            parts=(*drawn, *bridging),
            left_right=left_right,
            derived={},
            file_keypoints=names,
            file_names=names,
            sigmas=_oks_constants(chosen.name, names),
            layout=measure_layout(names, joints),
            drawn=drawn if bridging else (),
            category=chosen.name if chosen.name and num_kinds == 1 else "object",
        )
    except ValueError as error:
        raise DataError(f"{annotations}: category {chosen.name}: {error}; correct the category") from error
    return SkeletonDraft(skeleton, chosen.name, COMMENTS)


def skeleton_of(annotations: str | Path) -> Skeleton:
    """The skeleton of a COCO annotation file: COCO's if a category has COCO's keypoints, else a drafted one.

    A log message names the latter. ``DataError`` if the file or its categories cannot be used.
    """
    file = read_annotation_file(annotations, required=())
    names = {category.keypoints for category in file.parsed_categories if category.keypoints}
    if COCO.file_names in names or not names:
        return COCO
    skeleton = draft_skeleton(annotations).skeleton
    _log.warning(
        "%s has other keypoints than COCO: its OKS constants are drafted, %g to %g; a skeleton file names others",
        annotations,
        min(skeleton.sigmas),
        max(skeleton.sigmas),
    )
    return skeleton


def _oks_constants(category: str, names: Sequence[str]) -> tuple[float, ...]:
    """COCO's constants for a person's keypoints with COCO's names, ``DEFAULT_SIGMA`` for all others.

    Objects with all of COCO's keypoints are people, whatever they are called.
    """
    is_person = category.lower() == COCO.category or names == COCO.file_names
    known = dict(zip(COCO.file_names, COCO.sigmas)) if is_person else {}
    return tuple(known.get(name, DEFAULT_SIGMA) for name in names)


def measure_layout(names: Sequence[str], joints: np.ndarray) -> dict[str, tuple[float, float]]:
    """Measure ``Skeleton.layout`` on annotated keypoints.

    Every example is moved and scaled to fit the mean shape, then the mean shape is computed again, and so on. The
    result is scaled to the size of COCO's layout, because the decoder's constants are in that unit, lengths of the
    torso. It is empty if too few of the (P, K, 3) ``joints`` are labelled.
    """
    labelled = joints[..., 2] > 0
    useful = labelled.sum(1) >= max(3, len(names) // 2)
    weights = labelled[useful].astype(float)
    points = joints[useful, :, 0] + 1j * joints[useful, :, 1]  # (P, K) complex: x + iy
    if len(points) < MIN_EXAMPLES or (weights.sum(0) < MIN_EXAMPLES // 2).any():
        return {}
    centres = np.average(points, 1, weights, keepdims=True)  # (P, 1)
    sizes = _size(points, weights)
    for _ in range(FITTING_ROUNDS):
        fitted = (points - centres) / sizes
        shape = np.broadcast_to(np.average(fitted, 0, weights, keepdims=True), fitted.shape)
        # Compare each example with the mean positions of the keypoints that are labelled in it.
        sizes = _size(points, weights) / _size(shape, weights)
        shape_centres = np.average(shape, 1, weights, keepdims=True)
        centres = np.average(points, 1, weights, keepdims=True) - sizes * shape_centres
    heights = shape[0].imag
    # Measured from the vertical axis, not from the mean position: left and right change sides in a body from behind.
    spreads = np.sqrt(np.average(np.abs(fitted - 1j * heights) ** 2, 0, weights))
    coco_heights, coco_spreads = np.array(list(COCO.layout.values())).T
    unit = _layout_size(coco_heights, coco_spreads) / max(_layout_size(heights, spreads), 1e-6)
    heights = (heights - heights.mean()) * unit
    spreads = spreads * unit
    return {
        name: (round(float(height), 2), round(max(float(spread), MIN_SPREAD), 2))
        for name, height, spread in zip(names, heights, spreads)
    }


def _size(points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(P, 1) root mean square distance of each example's labelled keypoints from their mean."""
    squares = np.abs(points - np.average(points, 1, weights, keepdims=True)) ** 2
    size: np.ndarray = np.sqrt(np.average(squares, 1, weights, keepdims=True))
    return size.clip(min=1e-6)


def _layout_size(heights: np.ndarray, spreads: np.ndarray) -> float:
    """The root mean square distance from the mean, as in ``_size``, for a layout."""
    return float(np.sqrt(heights.var() + (spreads**2).mean()))


def _choose_category(file: AnnotationFile, name: str | None) -> Category:
    """The category called ``name``; the first one if ``name`` is None and all have the same keypoints."""
    categories = [file.parsed_categories[row] for row in np.flatnonzero(file.category_is_used).tolist()]
    found = [category for category in categories if name in (None, category.name)]
    if not found:
        others = ", ".join(category.name for category in categories)
        known = f"categories with keypoints: {others}"
        raise DataError(
            f"{file.path} has no category {name} with keypoints ({known}); choose another one by category=NAME"
        )
    if any(category.keypoints != found[0].keypoints for category in found):
        names = ", ".join(category.name for category in found)
        raise DataError(f"{file.path} has categories with different keypoints ({names}); choose one by category=NAME")
    return found[0]


def _with_mirror_images(parts: Sequence[Pair], left_right: Sequence[Pair]) -> list[Pair]:
    """The parts, followed by their missing mirror images."""
    mirror = twins(left_right)
    result = {frozenset(part): part for part in parts}
    for a, b in parts:
        twin = (mirror.get(a, a), mirror.get(b, b))
        result.setdefault(frozenset(twin), twin)
    return list(result.values())


def _joining_parts(
    names: Sequence[str], parts: Sequence[Pair], left_right: Sequence[Pair], joints: np.ndarray
) -> list[Pair]:
    """The shortest symmetric parts that connect all keypoints; in the order of the names if nothing is labelled."""
    points = joints[..., :2]
    labelled = joints[..., 2] > 0
    lengths = {}
    for a, b in itertools.combinations(range(len(names)), 2):
        both = labelled[:, a] & labelled[:, b]
        distances = np.linalg.norm(points[both, a] - points[both, b], axis=-1)
        lengths[names[a], names[b]] = float(np.median(distances)) if len(distances) else np.inf
    joining: list[Pair] = []
    for a_name, b_name in sorted(lengths, key=lengths.__getitem__):
        components = connected_components(names, [*parts, *joining])
        if len(components) == 1:
            break
        if not any(a_name in component and b_name in component for component in components):
            joining += _with_mirror_images([(a_name, b_name)], left_right)
    return joining


def _bridging_parts(names: Sequence[str], parts: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs of keypoints that two parts connect through a third keypoint, and no part directly."""
    neighbours: dict[str, set[str]] = {name: set() for name in names}
    for a, b in parts:
        neighbours[a].add(b)
        neighbours[b].add(a)
    pairs = itertools.combinations(names, 2)
    return tuple((a, b) for a, b in pairs if b not in neighbours[a] and neighbours[a] & neighbours[b])
