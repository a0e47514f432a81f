"""Comparing the values of a file in the normal form with each other: what cannot be right, and what is unusual."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from posenet.annotations import left_right
from posenet.annotations.adjustments import SINGLE_PLACES, SINGLE_SHARE
from posenet.annotations.coco import AnnotationFile, Mask
from posenet.annotations.coordinates import EDGE_MARGIN, distances_from_boxes
from posenet.annotations.outlines import boxes_of_polygons
from posenet.messages import pluralize
from posenet.skeleton.skeleton import compare_names

ELSEWHERE = 0.2
"""Share of the people who may have most keypoints outside their box, or a box and an outline at different places. One
in a hundred of COCO's has; if boxes have another format or only one of the two was scaled, most have."""
MIN_OVERLAP = 0.5
"""Smallest intersection of a box and the box of the outline, relative to their union."""
REACH = 0.8
"""Of the people in COCO's files, two in five have a keypoint beyond this share of the width or the height."""
MIN_REACHING = 50
"""At least this many people are needed to report that none has."""
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
    _compare_sides(file, measures_twins)


def _compare_categories(file: AnnotationFile) -> None:
    said = file.adjustments
    groups = [category.keypoints for category in file.parsed_categories]
    if not any(groups):
        said.add(
            "contradiction", "no-keypoints", "no category has keypoints",
            "give the category the names of its keypoints, in the order of the annotations",
        )  # fmt: skip
    elif file.skeleton is not None and not file.category_is_used.any():
        closest = max(groups, key=lambda names: len(set(names) & set(file.skeleton.file_names)))  # type: ignore[union-attr]
        said.add(
            "contradiction", "no-such-keypoints", "no category has the skeleton's keypoints",
            "draft its own skeleton, or fix the order", [compare_names(closest, file.skeleton.file_names)],
        )  # fmt: skip
    people = file.people
    counts = np.bincount(people.category_rows, minlength=len(groups))
    others = [
        f"{category.name}: {count} annotations"
        for category, is_used, count in zip(file.parsed_categories, file.category_is_used, counts.tolist())
        if category.keypoints and not is_used and count
    ]
    if others and file.category_is_used.any():
        said.add(
            "left out", "other-keypoints", "categories with other keypoints than the skeleton",
            "draft theirs: posenet annotations skeleton --category", others,
        )  # fmt: skip
    if len(file.groups_of_names()) > 1:
        used = [category.name for category in file.parsed_categories if category.keypoints]
        said.add(
            "warning", "several-skeletons", "categories with different keypoints; one network learns those of one",
            "draft a skeleton with --category to choose", used,
        )  # fmt: skip
    has_list = np.array([bool(entry.get("keypoints")) for entry in people.entries], bool)
    has_none = np.array([not names for names in groups], bool)[people.category_rows] if groups else has_list
    said.add_rows(
        "left out", "no-category", "annotations with keypoints in a category that lists none", "correct category_id",
        has_list & has_none & any(groups), people.ids,
    )  # fmt: skip


def _compare_labels(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.people
    is_person = file.is_labelled_person
    used = itertools.compress(people.entries, people.is_used)
    if not is_person.any() and any(any(entry.get("keypoints") or ()) for entry in used):
        said.add(
            "contradiction", "nothing-labelled", "no annotation has a labelled keypoint",
            "write visibility 1 or 2 where keypoints are labelled",
        )  # fmt: skip
    for names, is_member in file.groups_of_names().items():
        is_labelled = file.is_labelled[is_person & is_member]  # (P, K)
        never = [name for name, labels in zip(names, is_labelled.T) if not labels.any()]
        if len(is_labelled) >= MIN_EXAMPLES and never:
            count = pluralize(len(is_labelled), "annotation")
            said.add(
                "warning", "never-labelled", f"keypoints that none of {count} has",
                "the network learns that they are nowhere", never,
            )  # fmt: skip
    is_hidden = (~file.is_labelled & (file.keypoints[..., :2] != 0).any(axis=2)).any(axis=1)
    said.add_rows(
        "warning", "unlabelled-place", "annotations with coordinates whose visibility is 0", "these are not learned",
        is_hidden & is_person, people.ids,
    )  # fmt: skip
    extents = _ends(file) + _ends(file, -1)
    is_one_place = is_person & (file.num_labelled >= 3) & (extents == 0).all(axis=1)
    if _are_many(is_one_place, is_person):
        said.add_rows(
            "contradiction", "one-place", "annotations with all keypoints at the same place",
            "write 0, 0, 0 for keypoints that are not labelled", is_one_place, people.ids,
        )  # fmt: skip
    per_image = np.bincount(people.image_rows[is_person], minlength=len(file.images))
    said.add_rows(
        "warning", "many-people", f"images with more than {MAX_RESULTS} people",
        f"COCO's evaluation uses {MAX_RESULTS} results an image, and misses the others", per_image > MAX_RESULTS,
        [image.file_name for image in file.images],
    )  # fmt: skip


def _compare_with_images(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.people
    is_person = file.is_labelled_person
    limits = file.sizes[:, ::-1]
    beyond = is_person & (_ends(file) > limits + EDGE_MARGIN).any(axis=1)
    before = is_person & (_ends(file, -1) > EDGE_MARGIN).any(axis=1)
    outside = beyond | before
    if outside.sum() > max(SINGLE_PLACES, SINGLE_SHARE * is_person.sum()):
        if before.sum() >= ONE_SIDED * outside.sum():
            said.add_rows(
                "warning", "outside", "annotations with keypoints a little outside their image",
                "used as they are", outside, people.ids,
            )  # fmt: skip
        else:
            said.add_rows(
                "contradiction", "outside", "annotations with keypoints beyond the right or lower edge",
                "if images were made smaller, scale the annotations too", outside, people.ids,
            )  # fmt: skip
    reaches = np.maximum(_ends(file), people.boxes[:, :2] + people.boxes[:, 2:]) > REACH * limits
    if is_person.sum() >= MIN_REACHING and not reaches[is_person].any():
        said.add(
            "warning", "unreached", "no keypoint or box reaches the right or the lower fifth of an image",
            "if images were enlarged, scale the annotations too",
        )  # fmt: skip


def _compare_boxes(file: AnnotationFile) -> None:
    said, people = file.adjustments, file.people
    is_person = file.is_labelled_person
    distances = np.where(file.is_labelled, distances_from_boxes(file.keypoints[..., :2], people.boxes), 0)
    num_outside = (distances > OUTSIDE_BOX).sum(axis=1)
    elsewhere = is_person & (num_outside >= 2) & (num_outside >= 0.5 * file.num_labelled)
    if _are_many(elsewhere, is_person):
        said.add_rows(
            "contradiction", "box-elsewhere", "annotations with most keypoints outside their own box",
            "write both in pixels of the same image, bbox as x, y, width, height", elsewhere, people.ids,
        )  # fmt: skip
        return
    said.add_rows(
        "warning", "far-from-box", "annotations with keypoints far outside their own box", "look at the image",
        is_person & (distances > FAR).any(axis=1), people.ids,
    )  # fmt: skip
    objects = people.is_used & ~people.is_crowd
    ends = people.boxes[:, :2] + people.boxes[:, 2:]
    is_beyond = objects & (ends > BOX_MARGIN * file.sizes[:, ::-1]).any(axis=1)
    if is_beyond.sum() > max(SINGLE_PLACES, SINGLE_SHARE * objects.sum()):
        said.add_rows(
            "contradiction", "box-outside", "boxes that reach far beyond their image",
            "write bbox as x, y, width, height, in pixels of the image", is_beyond, people.ids,
        )  # fmt: skip
    is_apart = _find_outlines_elsewhere(file, objects)
    if _are_many(is_apart, objects):
        said.add_rows(
            "contradiction", "outline-elsewhere", "annotations whose outline and box are at different places",
            "write segmentation and bbox in pixels of the same image", is_apart, people.ids,
        )  # fmt: skip


def _find_outlines_elsewhere(file: AnnotationFile, objects: Mask) -> Mask:
    """(A,) bool: the box around the polygons and that of the annotation hardly overlap."""
    people = file.people
    outlines = {row: people.outlines[row] for row in np.flatnonzero(objects).tolist()}
    polygons = {row: outline for row, outline in outlines.items() if isinstance(outline, list)}
    rows = list(polygons)
    around = boxes_of_polygons(list(polygons.values()))
    boxes = people.boxes[rows]
    low = np.maximum(boxes[:, :2], around[:, :2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:], around[:, :2] + around[:, 2:])
    common = (high - low).clip(min=0).prod(axis=1)
    union = boxes[:, 2:].prod(axis=1) + around[:, 2:].prod(axis=1) - common
    found = np.zeros(len(people.ids), bool)
    found[rows] = common / union < MIN_OVERLAP
    return found


def _compare_sides(file: AnnotationFile, measures_twins: bool) -> None:
    """What ``left_right`` finds. Which of a pair is called left changes nothing that is trained."""
    checks: tuple[tuple[str, str, str, Any], ...] = (
        ("flip-pair", "pairs of the skeleton that the names contradict", "mirrored images teach wrong sides",
         left_right.contradicting_pairs),
        ("flip-missing", "left and right names that the skeleton does not pair",
         "mirrored images teach wrong sides; add them to left_right", left_right.missing_pairs),
        ("swapped-sides", "left and right exchanged in all pairs, as faces seen from the front show",
         "drawings and names are the other way round", left_right.exchanged_faces),
        ("swapped-here", "annotations with left and right exchanged in one pair", "swap them if they are confused",
         left_right.annotations_with_a_swapped_pair),
    )  # fmt: skip
    for code, message, consequence, find in checks:
        if places := find(file):
            file.adjustments.add("warning", code, message, consequence, places)
    for message in left_right.unknown_sides(file) if measures_twins else ():
        consequence = "write left_right in the skeleton, or mirror = true if there are none"
        file.adjustments.add("warning", "no-sides", message, consequence)


def _ends(file: AnnotationFile, sign: int = 1) -> np.ndarray:
    """(A, 2) the largest x and y of the labelled keypoints, or of their negatives; minus infinity without any."""
    points = sign * file.keypoints[..., :2]
    return np.asarray(points.max(axis=1, where=file.is_labelled[..., None], initial=-np.inf))


def _are_many(found: Mask, people: Mask) -> bool:
    return bool(found.sum() > max(SINGLE_PLACES, ELSEWHERE * people.sum()))
