"""Find everything in a COCO keypoint file that would harm training or evaluation.

The other readers of annotation files stop at the first problem. The linter runs the same checks, those of
``posenet.annotations.coco_file``, collects the problems that they raise, and adds more checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from posenet.annotations import coco_file
from posenet.annotations.coco_file import Category, CocoImage, Entry
from posenet.annotations.lint.findings import Finding, Findings
from posenet.annotations.lint.image_files import check_files
from posenet.annotations.lint.left_right import check_left_right
from posenet.annotations.lint.placement import PlacedPerson, check_placement
from posenet.annotations.main_persons import MIN_AREA
from posenet.annotations.problems import error_kind, warning_kind
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton

DUPLICATE_FILE = warning_kind(
    "duplicate-file",
    "files with several entries in images",
    "merge the images: let all annotations name one of them, and delete the others",
)
BACKSLASH = error_kind(
    "backslash", "file names with backslashes, which only Windows reads", "separate folders by /, on any system"
)
EXIF_SWAPPED = error_kind(
    "exif-swapped",
    "images with an EXIF orientation whose keypoints are outside the stored pixels, but inside the displayed image",
    "swap width and height of these images, so that they are those of the displayed image; keep the keypoints",
)
OTHER_KEYPOINTS = warning_kind(
    "other-keypoints",
    "categories with other keypoints than the skeleton; the tools leave them out",
    "draft a skeleton for them with posenet skeleton --category",
)
MIXED_CATEGORIES = warning_kind(
    "mixed-categories",
    "categories with different keypoints in one file",
    "train one network for each: the tools leave out the categories that do not fit its skeleton",
)
KEYPOINT_TWICE = error_kind("keypoint-twice", "categories that name a keypoint twice", "rename one")
NO_CATEGORY = warning_kind(
    "no-category", "annotations with keypoints in a category that lists none, which are left out", "correct category_id"
)
ZERO_AREA = error_kind(
    "zero-area",
    "annotations with area 0, which no evaluation can match",
    "write the area of the outline in square pixels, or of the box where there is no outline",
)
SMALL_AREA = warning_kind(
    "small",
    f"annotated objects smaller than {MIN_AREA} square pixels, too small to train on",
    "nothing if they are that small; else correct area",
)
BOX_OUTSIDE = warning_kind(
    "box-outside", "boxes that reach far beyond their image", "write bbox as x, y, width, height, not as two corners"
)
UNLABELLED_PLACE = warning_kind(
    "unlabelled-place",
    "keypoints with coordinates but visibility 0, which are not used",
    "write visibility 1 or 2 if the coordinates are right, else 0, 0, 0",
)
LABELLED_AT_ZERO = warning_kind(
    "labelled-at-zero", "labelled keypoints at (0, 0)", "write visibility 0 where the position is not known"
)
NUM_KEYPOINTS = warning_kind(
    "num-keypoints",
    "annotations with a num_keypoints other than the number of labelled ones",
    "count the keypoints with visibility above 0; the tools here count them themselves",
)
OUTSIDE = error_kind(
    "outside",
    "labelled keypoints outside their image",
    "write 0, 0, 0 for keypoints outside; if all are outside, their coordinates or the image's size are wrong",
)
ONLY_HIDDEN = warning_kind(
    "only-hidden",
    "no keypoint has visibility 2: all are labelled as hidden",
    "write 2 for visible keypoints; some tools write 1 for labelled and 0 for not labelled",
)
FLAT_OUTLINE = warning_kind(
    "flat-outline",
    "outlines that are one list of numbers, which are not used; the box replaces them",
    "write a list of polygons: [[x, y, x, y, ...]]",
)
SAME_KEYPOINTS = warning_kind(
    "same-keypoints", "annotations with exactly the keypoints of another one in the same image", "delete the copy"
)
NOTHING_LABELLED = error_kind(
    "nothing-labelled",
    "no annotation has a labelled keypoint",
    "check that keypoints are x, y, visibility, with visibility 1 or 2 where labelled",
)

BOX_MARGIN = 1.5
"""A box that ends beyond this many image widths or heights is probably written as two corners."""


@dataclass(frozen=True)
class LabelledPerson:
    """An annotation with labelled keypoints."""

    id: object  # as in the file; it may not be a number
    names: tuple[str, ...]  # the keypoints of its category
    keypoints: np.ndarray  # (K, 3) float64 x, y, visibility
    image: CocoImage | None  # None if it cannot be used
    box: list[float] | None  # None if it cannot be used


Item = TypeVar("Item")


@dataclass(frozen=True)
class Listed(Generic[Item]):
    """The images or categories that a file lists."""

    usable: dict[int, Item]
    """By id."""
    unusable_ids: frozenset[object]
    """The ids of the others, as in the file; they may be of any type."""


def lint_annotations(
    path: str | Path,
    images: str | Path | None = None,
    skeleton: Skeleton | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
) -> list[Finding]:
    """Find all problems of a COCO keypoint file, errors first; ``DataError`` if it is not a COCO file at all.

    Args:
        images: folder of the image files, which are then checked too.
        skeleton: the expected keypoints; None expects those of the categories in the file.
        exif_frame: see ``find_annotated_frame``.
    """
    sections = coco_file.read_sections(path)
    findings = Findings()
    folder = None if images is None else Path(images)
    listed_images = _check_images(sections["images"], folder, findings)
    displayed_sideways: frozenset[int] = frozenset()
    if folder is not None:
        displayed_sideways = check_files(listed_images.usable.values(), folder, exif_frame, findings)
    listed_categories = _check_categories(sections["categories"], findings)
    used_categories = _check_keypoint_names(listed_categories.usable.values(), skeleton, findings)
    used_ids = {category.id for category in used_categories}
    people = _check_annotations(
        sections["annotations"], listed_images, listed_categories, used_ids, displayed_sideways, findings
    )
    check_placement([_placed_person(person) for person in people], findings)
    for names in dict.fromkeys(category.keypoints for category in used_categories):
        with_names = [person for person in people if person.names == names]
        keypoints = np.array([person.keypoints for person in with_names]).reshape(-1, len(names), 3)
        check_left_right([person.id for person in with_names], keypoints, names, skeleton, findings)
    return findings.sorted()


def _check_images(entries: Sequence[Entry], folder: Path | None, findings: Findings) -> Listed[CocoImage]:
    """Check ``images``, but not their files."""
    ids = coco_file.UniqueIds("image")
    images = {}
    for entry in entries:
        image_id = findings.check(ids.parse, entry)
        name = findings.check(coco_file.parse_file_name, entry)
        size = findings.check(coco_file.parse_image_size, entry)
        if name is not None and "\\" in name and not (folder and (folder / name).is_file()):
            findings.add(BACKSLASH, name)
        if image_id is not None and name is not None and size is not None:
            images[image_id] = CocoImage(image_id, name, *size)
    for name, count in Counter(image.file_name for image in images.values()).items():
        if count > 1:
            findings.add(DUPLICATE_FILE, name)
    return Listed(images, _unusable_ids(entries, images))


def _unusable_ids(entries: Sequence[Entry], usable: Mapping[int, object]) -> frozenset[object]:
    """The ids of the entries that are not usable; "7" also as the number that it means."""
    ids: set[object] = set()
    for entry in entries:
        entry_id = entry.get("id")
        if isinstance(entry_id, (str, int, float)):
            ids.add(entry_id)
        if isinstance(entry_id, str) and entry_id.isdecimal() and len(entry_id) < 20:
            ids.add(int(entry_id))
    return frozenset(ids) - frozenset(usable)


def _check_categories(entries: Sequence[Entry], findings: Findings) -> Listed[Category]:
    """Check ``categories``."""
    ids = coco_file.UniqueIds("category")
    categories = {}
    for entry in entries:
        category_id = findings.check(ids.parse, entry)
        category = None if category_id is None else findings.check(coco_file.parse_category, entry)
        if category is not None:
            categories[category.id] = category
    return Listed(categories, _unusable_ids(entries, categories))


def _check_keypoint_names(
    categories: Collection[Category], skeleton: Skeleton | None, findings: Findings
) -> list[Category]:
    """Check the keypoint names of the categories; return the categories that the tools use."""
    used = findings.check(coco_file.require_keypoints, categories) or []
    if skeleton is not None:
        for category in used:
            if category.keypoints != skeleton.file_names:
                findings.add(OTHER_KEYPOINTS, category.id)
        used = findings.check(coco_file.require_skeleton, used, skeleton) or []
    if len({category.keypoints for category in used}) > 1:
        findings.add(MIXED_CATEGORIES, ", ".join(str(category.id) for category in used))
    for category in used:
        if len(set(category.keypoints)) < len(category.keypoints):
            findings.add(KEYPOINT_TWICE, category.id)
    return used


def _check_annotations(
    entries: Sequence[Entry],
    images: Listed[CocoImage],
    categories: Listed[Category],
    used_categories: Collection[int],
    displayed_sideways: Collection[int],
    findings: Findings,
) -> list[LabelledPerson]:
    """Check ``annotations``; return those of ``used_categories`` with labelled keypoints, without crowds."""
    ids = coco_file.UniqueIds("annotation")
    labelled = []
    all_usable = True
    seen: set[tuple[int, bytes]] = set()
    for entry in entries:
        findings.check(ids.parse, entry)
        image_id = _check_reference(entry, "image_id", images, findings)
        category_id = _check_reference(entry, "category_id", categories, findings)
        if category_id is None:
            continue
        if category_id not in used_categories:
            if "keypoints" in entry:
                findings.add(NO_CATEGORY, entry.get("id"))
            continue
        image = None if image_id is None else images.usable[image_id]
        crowd = findings.check(coco_file.parse_crowd_flag, entry)
        _check_area(entry, bool(crowd), findings)
        box = _check_outline(entry, image, findings)
        if "keypoints" not in entry:
            continue
        names = categories.usable[category_id].keypoints
        numbers = findings.check(coco_file.parse_keypoints, entry, len(names))
        if numbers is None:
            all_usable = False
            continue
        keypoints = np.array(numbers, np.float64).reshape(-1, 3)
        is_sideways = image is not None and image.id in displayed_sideways
        _check_keypoints(entry, keypoints, image, is_sideways, findings)
        if crowd or not (keypoints[:, 2] > 0).any():
            continue
        labelled.append(LabelledPerson(entry.get("id"), names, keypoints, image, box))
        if image is not None:
            copy = (image.id, keypoints.tobytes())
            if copy in seen:
                findings.add(SAME_KEYPOINTS, entry.get("id"))
            seen.add(copy)
    if used_categories and not labelled and all_usable:
        findings.add(NOTHING_LABELLED)
    if labelled and not any((person.keypoints[:, 2] == 2).any() for person in labelled):
        findings.add(ONLY_HIDDEN)
    return labelled


def _check_reference(entry: Entry, key: str, listed: Listed[Item], findings: Findings) -> int | None:
    """Return an annotation's ``image_id`` or ``category_id``; None if it cannot be used.

    If what it refers to is listed but cannot be used, that is a finding already.
    """
    reference = entry.get(key)
    if isinstance(reference, (str, int, float)) and reference in listed.unusable_ids:
        return None
    return findings.check(coco_file.parse_reference, entry, key, listed.usable)


def _placed_person(person: LabelledPerson) -> PlacedPerson:
    points = person.keypoints[person.keypoints[:, 2] > 0, :2]
    return PlacedPerson(person.id, points, person.image, person.box)


def _check_area(entry: Entry, crowd: bool, findings: Findings) -> None:
    area = findings.check(coco_file.parse_area, entry)
    if area is None or crowd:
        return
    if area == 0:
        findings.add(ZERO_AREA, entry.get("id"))
    elif area < MIN_AREA and entry.get("num_keypoints"):
        findings.add(SMALL_AREA, entry.get("id"))


def _check_outline(entry: Entry, image: CocoImage | None, findings: Findings) -> list[float] | None:
    """Check the box and the segmentation; return the box unless it cannot be used."""
    box = findings.check(coco_file.parse_box, entry)
    if coco_file.is_flat_outline(entry.get("segmentation")):
        findings.add(FLAT_OUTLINE, entry.get("id"))
    elif image is not None:
        findings.check(coco_file.parse_segmentation, entry, image)
    if box is None:
        return None
    x, y, width, height = box
    if min(width, height) == 0:
        findings.add(coco_file.EMPTY_BOX, entry.get("id"))
        return None
    if image is not None and (x + width > BOX_MARGIN * image.width or y + height > BOX_MARGIN * image.height):
        findings.add(BOX_OUTSIDE, entry.get("id"))
    return box


def _check_keypoints(
    entry: Entry, keypoints: np.ndarray, image: CocoImage | None, is_sideways: bool, findings: Findings
) -> None:
    """Check the (K, 3) keypoints of one annotation. ``is_sideways``: see ``check_files``."""
    findings.check(coco_file.check_visibility, keypoints[None], [entry])
    entry_id = entry.get("id")
    x, y, visibility = keypoints.T
    labelled = visibility > 0
    at_zero = (x == 0) & (y == 0)
    if (~labelled & ~at_zero).any():
        findings.add(UNLABELLED_PLACE, entry_id)
    if (labelled & at_zero).any():
        findings.add(LABELLED_AT_ZERO, entry_id)
    stated = entry.get("num_keypoints")
    if stated is not None and stated != int(labelled.sum()):
        findings.add(NUM_KEYPOINTS, entry_id)
    if image is not None:
        inside = (x >= 0) & (y >= 0) & (x <= image.width) & (y <= image.height)
        inside_swapped = (x >= 0) & (y >= 0) & (x <= image.height) & (y <= image.width)
        if is_sideways and (labelled & ~inside).any() and not (labelled & ~inside_swapped).any():
            findings.add(EXIF_SWAPPED, f"{image.file_name} (annotation {entry_id})")
        elif (labelled & ~inside).any():
            findings.add(OUTSIDE, entry_id)
