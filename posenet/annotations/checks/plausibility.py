"""Comparing the values of a file in the normal form with each other: what cannot be right, and what is unusual."""

from __future__ import annotations

import itertools

import numpy as np

from posenet.annotations.adjustments import SINGLE_PLACES, SINGLE_SHARE
from posenet.annotations.checks.sides import find_other_pairs, find_swapped_pairs, find_unknown_sides
from posenet.annotations.coco import AnnotationFile, Mask
from posenet.annotations.outlines import EDGE_MARGIN, distances_from_boxes
from posenet.skeleton.skeleton import compare_names

ELSEWHERE = 0.2
"""Share of the people who may have most keypoints outside their box. One in a hundred of COCO's has; if boxes have
another format or only one of the two was scaled, most have."""
BOX_MARGIN = 1.5
"""A box that ends beyond this many image widths or heights is wrong."""
FAR = 1.0
"""Distance from the box, relative to its longer side, from which a keypoint is reported."""
OUTSIDE_BOX = 0.1
"""Distance from the box, relative to its longer side, from which a keypoint counts as outside. In COCO's annotations,
one person in a hundred has half of the keypoints outside."""
ONE_SIDED = 0.1
"""If images were made smaller without their annotations, keypoints leave them to the right and below. In sets that
annotate what is outside the image, at least this share of the people leave it to the left or above."""
MIN_EXAMPLES = 20
"""At least this many people are needed to report a keypoint that nobody has."""
MAX_RESULTS = 20
"""COCO's evaluation uses so many results of an image."""


def find_suspicious(file: AnnotationFile, measures_twins: bool) -> None:
    """Add contradictions and warnings to the adjustments of a file; see ``read_annotation_file``."""
    _compare_categories(file)
    if file.adjustments.contradictions:
        return  # others would only follow from them
    _compare_labels(file)
    _compare_with_images(file)
    _compare_boxes(file)
    unknown = find_unknown_sides(file) if measures_twins else []
    found = {"flip-pairs": find_other_pairs(file), "swapped-here": find_swapped_pairs(file), "no-sides": unknown}
    for code, places in found.items():
        if places:
            file.adjustments.add("warning", code, places)


def _compare_categories(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.columns
    groups = [category.keypoints for category in file.categories.parsed]
    has_used = bool(file.categories.is_used.any())
    if not any(groups):
        said.add("contradiction", "no-keypoints")
    elif file.skeleton is not None and not has_used:
        expected = file.skeleton.file_names
        closest = max(groups, key=lambda names: len(set(names) & set(expected)))
        said.add("contradiction", "no-such-keypoints", [compare_names(closest, expected)])
    counts = np.bincount(people.category_rows, minlength=len(groups)).tolist()
    others = [
        f"{category.name}: {count} annotations"
        for category, is_used, count in zip(file.categories.parsed, file.categories.is_used, counts)
        if category.keypoints and not is_used and count and has_used
    ]
    if others:
        said.add("left out", "other-keypoints", others)
    if len(file.groups_of_names()) > 1:
        named = [category.name for category in file.categories.parsed if category.keypoints]
        said.add("warning", "several-skeletons", named)
    has_list = np.array([bool(entry.get("keypoints")) for entry in people.entries], bool)
    lists_none = np.array([not names for names in groups] or [False], bool)[people.category_rows]
    said.add_rows("left out", "no-category", has_list & lists_none & any(groups), people.ids)


def _compare_labels(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.columns
    is_person = people.is_labelled_person
    used = itertools.compress(people.entries, people.is_used)
    if not is_person.any() and any(any(entry.get("keypoints") or ()) for entry in used):
        said.add("contradiction", "nothing-labelled")
    for names, is_member in file.groups_of_names().items():
        is_labelled = people.is_labelled[is_person & is_member]  # (P, K)
        never = [name for name, labels in zip(names, is_labelled.T) if not labels.any()]
        if len(is_labelled) >= MIN_EXAMPLES and never:
            said.add("warning", "never-labelled", never)
    is_hidden = (~people.is_labelled & (people.keypoints[..., :2] != 0).any(axis=2)).any(axis=1)
    said.add_rows("warning", "unlabelled-place", is_hidden & is_person, people.ids)
    is_one_place = is_person & (people.num_labelled >= 3) & (_ends(file) + _ends(file, -1) == 0).all(axis=1)
    if _are_many(is_one_place, is_person):
        said.add_rows("contradiction", "one-place", is_one_place, people.ids)
    per_image = np.bincount(people.image_rows[is_person], minlength=len(file.images))
    said.add_rows("warning", "many-people", per_image > MAX_RESULTS, [image.file_name for image in file.images])


def _compare_with_images(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.columns
    is_person = people.is_labelled_person
    limits = file.sizes[:, ::-1]
    beyond = is_person & (_ends(file) > limits + EDGE_MARGIN).any(axis=1)
    before = is_person & (_ends(file, -1) > EDGE_MARGIN).any(axis=1)
    outside = beyond | before
    is_one_sided = before.sum() < ONE_SIDED * outside.sum()
    if is_one_sided and outside.sum() > max(SINGLE_PLACES, SINGLE_SHARE * is_person.sum()):
        said.add_rows("contradiction", "outside", outside, people.ids)


def _compare_boxes(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.columns
    is_person = people.is_labelled_person
    distances = np.where(people.is_labelled, distances_from_boxes(people.keypoints[..., :2], people.boxes), 0)
    num_outside = (distances > OUTSIDE_BOX).sum(axis=1)
    elsewhere = is_person & (num_outside >= 2) & (num_outside >= 0.5 * people.num_labelled)
    if _are_many(elsewhere, is_person):
        said.add_rows("contradiction", "box-elsewhere", elsewhere, people.ids)
        return
    said.add_rows("warning", "far-from-box", is_person & (distances > FAR).any(axis=1), people.ids)
    objects = people.is_used & ~people.is_crowd
    ends = people.boxes[:, :2] + people.boxes[:, 2:]
    is_beyond = objects & (ends > BOX_MARGIN * file.sizes[:, ::-1]).any(axis=1)
    if is_beyond.sum() > max(SINGLE_PLACES, SINGLE_SHARE * objects.sum()):
        said.add_rows("contradiction", "box-outside", is_beyond, people.ids)


def _ends(file: AnnotationFile, sign: int = 1) -> np.ndarray:
    """(A, 2) the largest x and y of the labelled keypoints, or of their negatives; minus infinity without any."""
    points = sign * file.columns.keypoints[..., :2]
    return np.asarray(points.max(axis=1, where=file.columns.is_labelled[..., None], initial=-np.inf))


def _are_many(found: Mask, people: Mask) -> bool:
    return bool(found.sum() > max(SINGLE_PLACES, ELSEWHERE * people.sum()))
