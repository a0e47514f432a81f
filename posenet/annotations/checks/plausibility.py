"""Comparing the values of a file in the normal form with each other: what cannot be right, and what is unusual."""

import itertools
from collections.abc import Sequence

import numpy as np

from posenet.annotations.adjustments import are_few
from posenet.annotations.coco import AnnotationFile
from posenet.annotations.known_bodies import Pair, find_twins, pair_left_right
from posenet.annotations.outlines import EDGE_MARGIN, boxes_around, distances_from_boxes
from posenet.skeleton.skeleton import compare_names, twins

MIN_EXAMPLES = 20
"""At least this many people are needed to measure a share, or to report a keypoint that nobody has."""
MAX_RESULTS = 20
"""COCO's evaluation uses so many results of an image."""
ONE_SIDED = 0.1
"""If images were made smaller without their annotations, keypoints leave them to the right and below. In sets that
annotate what is outside the image, at least this share of the people leave it to the left or above."""
OUTSIDE_BOX, FAR = 0.1, 1.0
"""Distances from the box, relative to its longer side, from which a keypoint counts as outside, and is reported. In
COCO's annotations, one person in a hundred has half of the keypoints outside."""
ELSEWHERE = 0.2
"""Share of the people who may have most keypoints outside their box. If boxes have another format or only one of the
two was scaled, most have."""
BOX_MARGIN = 1.5
"""A box that ends beyond this many image widths or heights is wrong."""
CORNERS_SHARE, MIN_FILLED = 0.6, 0.2
"""Boxes are two corners if so read they have less than this share of their area, all keypoints are in them, and what
these cover is more than the second share of that. If they are not, keypoints are spread over all of the box."""
MIN_GAP = 0.1
"""Smallest horizontal distance between left and right, relative to the size of the object."""
RARE_SHARE = 0.05
"""If less than this share of the annotations has a pair the other way round, each of these is reported."""
MIN_OTHER_PAIRS = 3
"""Smallest number of other pairs that must agree for a report of a single annotation."""


def find_suspicious(file: AnnotationFile) -> None:
    """Add contradictions and warnings to the adjustments of a file; see ``read_annotation_file``."""
    _compare_categories(file)
    if not file.adjustments.contradictions:  # others would only follow from them
        _compare_keypoints(file)
        _compare_boxes(file)
        _compare_sides(file)


def _compare_categories(file: AnnotationFile) -> None:
    adjustments, people, categories = file.adjustments, file.columns, file.categories
    groups = [category.keypoints for category in categories.parsed]
    has_used = bool(categories.is_used.any())
    if not any(groups):
        adjustments.add("contradiction", "no-keypoints")
    elif file.skeleton is not None and not has_used:
        expected = file.skeleton.file_names
        closest = max(groups, key=lambda names: len(set(names) & set(expected)))
        adjustments.add("contradiction", "no-such-keypoints", [compare_names(closest, expected)])
    counts = np.bincount(people.category_rows, minlength=len(groups)).tolist()
    others = [
        f"{category.name}: {count} annotations"
        for category, is_used, count in zip(categories.parsed, categories.is_used, counts)
        if category.keypoints and not is_used and count and has_used
    ]
    if others:
        adjustments.add("left out", "other-keypoints", others)
    if len(file.groups_of_names()) > 1:
        adjustments.add("warning", "several-skeletons", [one.name for one in categories.parsed if one.keypoints])
    has_list = np.array([bool(entry.get("keypoints")) for entry in people.entries], bool)
    lists_none = np.array([not names for names in groups] or [False], bool)[people.category_rows]
    adjustments.add_rows("left out", "no-category", has_list & lists_none & any(groups), people.ids)


def _compare_keypoints(file: AnnotationFile) -> None:
    adjustments, people, is_person = file.adjustments, file.columns, file.columns.is_labelled_person
    points, is_labelled = people.keypoints[..., :2], people.is_labelled
    used = itertools.compress(people.entries, people.is_used)
    if not is_person.any() and any(any(entry.get("keypoints") or ()) for entry in used):
        adjustments.add("contradiction", "nothing-labelled")
    for names, is_member in file.groups_of_names().items():
        of_group = is_labelled[is_person & is_member]  # (P, K)
        never = [name for name, labels in zip(names, of_group.T) if not labels.any()]
        if len(of_group) >= MIN_EXAMPLES and never:
            adjustments.add("warning", "never-labelled", never)
    is_hidden = (~is_labelled & (points != 0).any(axis=2)).any(axis=1)
    adjustments.add_rows("warning", "unlabelled-place", is_hidden & is_person, people.ids)
    low = points.min(axis=1, where=is_labelled[..., None], initial=np.inf)
    high = points.max(axis=1, where=is_labelled[..., None], initial=-np.inf)
    per_image = np.bincount(people.image_rows[is_person], minlength=len(file.images))
    adjustments.add_rows("warning", "many-people", per_image > MAX_RESULTS, [image.file_name for image in file.images])
    is_before = is_person & (low < -EDGE_MARGIN).any(axis=1)
    is_outside = is_before | is_person & (high > file.sizes[:, ::-1] + EDGE_MARGIN).any(axis=1)
    if is_before.sum() < ONE_SIDED * is_outside.sum() and not are_few(is_outside.sum(), is_person.sum()):
        adjustments.add_rows("contradiction", "outside", is_outside, people.ids)


def _compare_boxes(file: AnnotationFile) -> None:
    adjustments, people, is_person = file.adjustments, file.columns, file.columns.is_labelled_person
    firsts, seconds = people.boxes[:, :2], people.boxes[:, 2:]
    covered = boxes_around(people.keypoints[..., :2], people.is_labelled)[:, 2:].prod(axis=1)
    for corners in (firsts, firsts + seconds / 2):  # those of COCO, and of YOLO-pose, which has centres
        sides = (seconds - corners).clip(min=0)
        distances = distances_from_boxes(people.keypoints[..., :2], np.hstack([corners, sides]))
        is_around = ((distances <= OUTSIDE_BOX) | ~people.is_labelled).all(axis=1)
        is_filled = covered > MIN_FILLED * sides.prod(axis=1)
        is_corners = is_person & is_around & is_filled & (sides.prod(axis=1) < CORNERS_SHARE * seconds.prod(axis=1))
        if is_person.sum() >= MIN_EXAMPLES and not are_few(is_corners.sum(), is_person.sum(), 0.5):
            adjustments.add_rows("contradiction", "box-corners", is_corners, people.ids)
            return
    distances = np.where(people.is_labelled, distances_from_boxes(people.keypoints[..., :2], people.boxes), 0)
    num_outside = (distances > OUTSIDE_BOX).sum(axis=1)
    is_elsewhere = is_person & (num_outside >= 2) & (num_outside >= 0.5 * people.num_labelled)
    if not are_few(is_elsewhere.sum(), is_person.sum(), ELSEWHERE):
        adjustments.add_rows("contradiction", "box-elsewhere", is_elsewhere, people.ids)
        return
    adjustments.add_rows("warning", "far-from-box", is_person & (distances > FAR).any(axis=1), people.ids)
    ends = people.boxes[:, :2] + people.boxes[:, 2:]
    is_beyond = people.is_object & (ends > BOX_MARGIN * file.sizes[:, ::-1]).any(axis=1)
    if not are_few(is_beyond.sum(), people.is_object.sum()):
        adjustments.add_rows("contradiction", "box-outside", is_beyond, people.ids)


def _compare_sides(file: AnnotationFile) -> None:
    """Name the pairs that the skeleton has otherwise than the names, exchanged sides, and what tells no sides."""
    skeleton, people = file.skeleton, file.columns
    others: list[str] = []
    swapped: list[str] = []
    unknown: list[str] = []
    for names, is_member in file.groups_of_names().items():
        rows = np.flatnonzero(is_member & people.is_labelled_person)
        joints = people.keypoints[rows, : len(names)]
        category = next(category for category in file.categories.parsed if category.keypoints == names)
        pairs, unpaired = find_twins(category)
        if skeleton is not None:
            spelled = dict(zip(skeleton.file_keypoints, names))
            pairs = tuple((spelled[a], spelled[b]) for a, b in skeleton.left_right if a in spelled and b in spelled)
            others += [name for name, twin in twins(pair_left_right(names)).items() if twins(pairs).get(name) != twin]
        swapped += [f"{people.ids[rows[row]]} ({', '.join(pair)})" for row, pair in _find_swapped(names, pairs, joints)]
        # A skeleton with pairs, or one that lets nothing be mirrored, has decided.
        if skeleton is None or (skeleton.mirror and not skeleton.left_right):
            unknown += unpaired
    for code, places in {"flip-pairs": others, "swapped-here": swapped, "no-sides": unknown}.items():
        if places:
            file.adjustments.add("warning", code, places)


def _find_swapped(names: Sequence[str], pairs: Sequence[Pair], joints: np.ndarray) -> list[tuple[int, Pair]]:
    """The few of (P, K, 3) annotations, with the pair, in which a pair agrees or disagrees with all others, unlike in
    nearly all annotations.

    In a body seen from the front, every left keypoint is to the right of its twin in the image; seen from behind, every
    one is to the left. So pairs agree or disagree in nearly all people alike, and those in whom one differs are
    probably wrong.
    """
    if len(pairs) < 2:
        return []
    left, right = np.array([(names.index(a), names.index(b)) for a, b in pairs]).T
    is_labelled = joints[..., 2] > 0
    sizes = boxes_around(joints[..., :2], is_labelled)[:, 2:].max(axis=1, keepdims=True)
    gaps = joints[:, left, 0] - joints[:, right, 0]  # (P, pairs)
    is_clear = is_labelled[:, left] & is_labelled[:, right] & (np.abs(gaps) > MIN_GAP * sizes)
    directions = np.where(is_clear, np.sign(gaps), 0)
    others = directions.sum(axis=1, keepdims=True) - directions
    num_others = is_clear.sum(axis=1, keepdims=True) - is_clear
    # If the others disagree among themselves, the body is seen from its side or has crossed limbs.
    is_comparable = is_clear & (num_others > 0) & (np.abs(others) == num_others)
    is_same = directions == np.sign(others)
    is_same_rare = 2 * (is_comparable & is_same).sum(axis=0) <= is_comparable.sum(axis=0)
    is_rare = is_comparable & (is_same == is_same_rare)
    is_measured = is_comparable.sum(axis=0) >= MIN_EXAMPLES
    is_measured &= is_rare.sum(axis=0) < RARE_SHARE * is_comparable.sum(axis=0)
    is_reported = is_rare & is_measured & (num_others >= MIN_OTHER_PAIRS)
    return [(row, pairs[column]) for column, row in np.argwhere(is_reported.T).tolist()]
