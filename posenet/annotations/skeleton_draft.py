"""Draft a skeleton from a COCO keypoint file: names and parts from its categories, the layout from its people."""

import itertools
import logging
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.coco import AnnotationFile, Category
from posenet.annotations.known_bodies import Pair, find_twins, known_edges, known_sigmas
from posenet.annotations.reader import read_annotation_file
from posenet.errors import DataError
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.known_names import canonical_names
from posenet.skeleton.skeleton import twins
from posenet.skeleton.skeleton_file import DEFAULT_SIGMA, connected_components

MIN_EXAMPLES = 20
"""Smallest number of annotations for measuring a layout."""
MIN_SPREAD = 0.1
"""Smallest spread of a keypoint in a layout, in lengths of the torso."""
MAX_BRIDGED = 4
"""A bridge leads over a keypoint with no more parts than this."""
MANY_KEYPOINTS = 64
"""An object with more keypoints has no bridges over numbered ones: those of faces and fingers are close together."""
PARTS_PER_KEYPOINT = 2
"""Bridges are added up to this number of parts for each keypoint."""

COMMENTS = {
    "keypoints": "With the names and in the order of the annotation file.",
    "parts": "The connections that the network learns: those of the annotation file, or of a known body, with their\n"
    "mirror images; then the shortest ones that connect keypoints which were apart, check them; then bridges over one\n"
    "keypoint: they connect a body when a keypoint is hidden.",
    "left_right": "A mirrored image swaps them. Check that none is missing.",
    "mirror": "Nothing says which keypoints are left and right, so no images are mirrored. Write the pairs in\n"
    "left_right, then delete this line; delete it too if the object has no left and right.",
    "drawn": "The parts that drawings show.",
    "sigmas": "OKS constants: how precisely annotators place each keypoint. Those of known keypoints of bodies, hands\n"
    "and faces are COCO's, COCO-WholeBody's and AP-10K's.\n"
    f"{DEFAULT_SIGMA} is only a default: annotate some images twice and compute, for every keypoint, the root mean\n"
    "square of distance / sqrt(area of the object).",
    "layout": "Keypoints in an upright person or object: height (down is positive) and spread, measured on the\n"
    "annotations. They help to group keypoints. Delete the table if objects have no usual position.",
}
"""Comments of the skeleton file, by key: the source of a value and what to check."""

_log = logging.getLogger(__name__)


def draft_skeleton(annotations: str | Path | AnnotationFile, category: str | None = None) -> Skeleton:
    """Describe the keypoints of a COCO annotation file, or of one that is read, as a skeleton.

    The parts are the edges of the category's ``skeleton`` or, without any, those of known bodies, hands, faces and
    animals; their mirror images; and the shortest parts that connect all keypoints. Parts between keypoints that are
    two of these apart, such as shoulder and wrist, are added: they connect a person when the keypoint between them is
    hidden, and drawings leave them out. Left and right are those of ``find_twins``. The OKS constants are those of
    known keypoints, else ``DEFAULT_SIGMA``. COCO's keypoints in any spelling and order have COCO's skeleton.

    Args:
        category: its name, optional if all with keypoints have the same ones; ``DataError`` if it cannot be used.
    """
    file = annotations if isinstance(annotations, AnnotationFile) else read_annotation_file(annotations)
    file.adjustments.refuse(file.path, only=("no-keypoints", "keypoint-values"))
    chosen = _choose_category(file, category)
    names = chosen.keypoints
    joints = file.columns.keypoints[file.groups_of_names()[names] & file.columns.is_labelled_person, : len(names)]
    num_kinds = 1 if category else sum(other.keypoints == names for other in file.categories.parsed)
    left_right, unpaired = find_twins(chosen)
    of_category: dict[str, Any] = {
        "file_names": names,
        "category": chosen.name if chosen.name and num_kinds == 1 else "object",
        "category_id": file.categories.ids[file.categories.parsed.index(chosen)],
    }
    canonical = canonical_names(names, chosen.name)
    try:
        if set(canonical) == set(COCO.file_names):
            sigma_of = dict(zip(COCO.file_keypoints, COCO.sigmas))
            sigmas = tuple(sigma_of[name] for name in canonical)
            return replace(COCO, file_keypoints=canonical, sigmas=sigmas, **of_category)
        drawn = _draw_parts(chosen, left_right, joints)
        bridging = _bridging_parts(names, drawn, left_right)
        return Skeleton(
            keypoints=names,
            parts=(*drawn, *bridging),
            left_right=left_right,
            derived={},
            file_keypoints=names,
            sigmas=known_sigmas(names, chosen.name, DEFAULT_SIGMA),
            layout=measure_layout(names, joints),
            drawn=tuple(drawn) if bridging else (),
            mirror=not unpaired,
            **of_category,
        )
    except ValueError as error:
        raise DataError(f"{file.path}: category {chosen.name}: {error}; correct the category") from error


def skeleton_of(annotations: str | Path) -> Skeleton:
    """The skeleton of a COCO annotation file: COCO's if a category has COCO's keypoints, else a drafted one.

    A log message names the latter. ``DataError`` if the file or its categories cannot be used.
    """
    file = read_annotation_file(annotations)
    names = {category.keypoints for category in file.categories.parsed if category.keypoints}
    if COCO.file_names in names or not names:
        return COCO
    skeleton = draft_skeleton(file)
    text = "%s has other keypoints than COCO: its OKS constants are drafted, %g to %g; a skeleton file names others"
    _log.warning(text, annotations, min(skeleton.sigmas), max(skeleton.sigmas))
    return skeleton


def measure_layout(names: Sequence[str], joints: np.ndarray) -> dict[str, tuple[float, float]]:
    """Measure ``Skeleton.layout`` on annotated keypoints.

    Every example is moved and scaled to fit the mean shape, then the mean shape is computed again, five times. The
    result is scaled to the size of COCO's layout, because the decoder's constants are in that unit, lengths of the
    torso. It is empty if too few of the (P, K, 3) ``joints`` are labelled.
    """
    labelled = joints[..., 2] > 0
    useful = labelled.sum(1) >= max(3, len(names) // 2)
    weights = labelled[useful].astype(float)
    points = joints[useful, :, 0] + 1j * joints[useful, :, 1]  # (P, K) complex: x + iy
    if len(points) < MIN_EXAMPLES or (weights.sum(0) < MIN_EXAMPLES // 2).any():
        return {}
    own_centres, own_sizes = _centres_and_sizes(points, weights)
    centres, sizes = own_centres, own_sizes
    for _ in range(5):
        fitted = (points - centres) / sizes
        shape = np.broadcast_to(np.average(fitted, 0, weights, keepdims=True), fitted.shape)
        # Compare each example with the mean positions of the keypoints that are labelled in it.
        shape_centres, shape_sizes = _centres_and_sizes(shape, weights)
        sizes = own_sizes / shape_sizes
        centres = own_centres - sizes * shape_centres
    heights = shape[0].imag
    # Measured from the vertical axis, not from the mean position: left and right change sides in a body from behind.
    spreads = np.sqrt(np.average(np.abs(fitted - 1j * heights) ** 2, 0, weights))
    coco_heights, coco_spreads = np.array(list(COCO.layout.values())).T
    unit = _layout_size(coco_heights, coco_spreads) / max(_layout_size(heights, spreads), 1e-6)
    return {
        name: (round(float(height), 2), round(max(float(spread), MIN_SPREAD), 2))
        for name, height, spread in zip(names, (heights - heights.mean()) * unit, spreads * unit)
    }


def _centres_and_sizes(points: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P, 1) the mean of each example's labelled keypoints, and their root mean square distance from it."""
    centres = np.average(points, 1, weights, keepdims=True)
    squares = np.average(np.abs(points - centres) ** 2, 1, weights, keepdims=True)
    return centres, np.sqrt(squares).clip(min=1e-6)


def _layout_size(heights: np.ndarray, spreads: np.ndarray) -> float:
    """The root mean square distance from the mean."""
    return float(np.sqrt(heights.var() + (spreads**2).mean()))


def _choose_category(file: AnnotationFile, name: str | None) -> Category:
    """The category called ``name``; the first one if ``name`` is None and all have the same keypoints."""
    categories = [file.categories.parsed[row] for row in np.flatnonzero(file.categories.is_used).tolist()]
    found = [category for category in categories if name in (None, category.name)]
    names = ", ".join(category.name for category in found or categories)
    if not found:
        raise DataError(
            f"{file.path} has no category {name} with keypoints (those with some: {names}); name one by --category NAME"
        )
    if any(category.keypoints != found[0].keypoints for category in found):
        raise DataError(f"{file.path} has categories with different keypoints ({names}); choose one by --category NAME")
    return found[0]


def _with_mirror_images(parts: Sequence[Pair], left_right: Sequence[Pair]) -> list[Pair]:
    """The parts, followed by their missing mirror images."""
    mirror = twins(left_right)
    result = {frozenset(part): part for part in parts}
    for a, b in parts:
        twin = (mirror.get(a, a), mirror.get(b, b))
        result.setdefault(frozenset(twin), twin)
    return list(result.values())


def _draw_parts(category: Category, left_right: Sequence[Pair], joints: np.ndarray) -> list[Pair]:
    """Symmetric parts that connect all keypoints: the category's edges, known ones, the shortest ones."""
    names = category.keypoints
    known = known_edges(names, category.name)
    edges = [(names[a], names[b]) for a, b in category.edges]
    parts = _with_mirror_images(edges or known, left_right)

    def groups() -> dict[str, list[str]]:
        return {name: group for group in connected_components(names, parts) for name in group}

    group_of = groups()
    for a, b in itertools.chain(known, _by_length(names, joints)):
        if group_of[a] is not group_of[b]:
            parts += _with_mirror_images([(a, b)], left_right)
            group_of = groups()
    return parts


def _by_length(names: Sequence[str], joints: np.ndarray) -> list[Pair]:
    """All pairs of keypoints, the shortest first, in sizes of the objects; by the order of the names if unlabelled."""
    joints = joints[:300]  # so many are enough to measure lengths
    points = np.where(joints[..., 2:] > 0, joints[..., :2], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of keypoints that are never labelled together
        sizes = np.nanmax(points, axis=1) - np.nanmin(points, axis=1)  # (P, 2)
        points = points / np.hypot(*sizes.T).clip(1e-6)[:, None, None]
        lengths = [np.nanmedian(np.linalg.norm(points - points[:, [row]], axis=2), axis=0) for row in range(len(names))]
    first, second = np.triu_indices(len(names), 1)
    of_pairs = np.nan_to_num(np.reshape(lengths, (len(names), len(names)))[first, second], nan=np.inf)
    order = np.lexsort((first, second - first, of_pairs))
    return [(names[a], names[b]) for a, b in zip(first[order].tolist(), second[order].tolist())]


def _bridging_parts(names: Sequence[str], parts: Sequence[Pair], left_right: Sequence[Pair]) -> list[Pair]:
    """The pairs of keypoints that two parts connect through a third keypoint, and no part directly.

    They are those over the keypoints with the fewest parts, and so many that the number of parts grows with that of the
    keypoints.
    """
    neighbours = {name: [other for part in parts if name in part for other in part if other != name] for name in names}
    is_dense = len(names) > MANY_KEYPOINTS
    middles = [name for name in names if len(neighbours[name]) <= MAX_BRIDGED and not (is_dense and name[-1].isdigit())]
    bridges: dict[frozenset[str], Pair] = {}
    for middle in sorted(middles, key=lambda name: len(neighbours[name])):
        for a, b in itertools.combinations(sorted(neighbours[middle], key=names.index), 2):
            added = _with_mirror_images([(a, b)], left_right)
            is_full = len(parts) + len(bridges) + len(added) > max(PARTS_PER_KEYPOINT * len(names), 3)
            if b not in neighbours[a] and not is_full:
                bridges |= {frozenset(pair): pair for pair in added if frozenset(pair) not in bridges}
    return list(bridges.values())
