"""One table of rules for COCO keypoint files. Reading refuses a file at the first error, linting lists all problems,
and repair mends those that have a repair.

Every rule finds its problem in the columns of an ``AnnotationFile``.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np

from posenet.annotations import left_right, repair
from posenet.annotations.coco import (
    UNLISTED,
    AnnotationFile,
    Mask,
    list_image_files,
    read_document,
    select_rows,
    select_sections,
    write_output,
)
from posenet.annotations.outlines import SHARE_OF_BOX
from posenet.errors import DataError
from posenet.files import check_outputs, is_standard_output
from posenet.images import AnnotatedFrame
from posenet.messages import pluralize, to_single_line
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import Skeleton
from posenet.skeleton.skeleton import compare_names

FEW = 0.01
"""Share of the annotations that may have a problem with which a file is still read."""
OUTSIDE = 0.05
"""Share of the annotations that may have keypoints outside their image. COCO has none in 497. In images that are made
smaller by 5 % without their annotations, one person in seven has."""
FEW_PLACES = 2
"""Number of places that are single faults, in files of any size."""
ELSEWHERE = 0.2
"""Share of the people who may have most keypoints outside their box, or a box and an outline at different places. One
in a hundred of COCO's has; if boxes have another format or only one of the two was scaled, most have."""
MIN_OVERLAP = 0.5
"""Smallest intersection of a box and the box of the outline, relative to their union."""
REACH = 0.8
"""Of the people in COCO's files, two in five have a keypoint beyond this share of the width or the height."""
MIN_REACHING = 50
"""At least this many people are needed to report that none has."""
EDGE_MARGIN = 1.0
"""Keypoints at most this far outside the image, in pixels, are at its edge: coordinates are rounded."""
SHOWN_PLACES = 5
"""Number of places in the text of a finding."""
SHOWN_CHARACTERS = 1000
"""Length of these places, at most."""
BOX_MARGIN = 1.5
"""A box that ends beyond this many image widths or heights is wrong."""
CORNER_MARGIN = 1.1
"""A box that is written as two corners is recognised if x, y, width, height would end beyond this many image widths or
heights, as in more than half of COCO's people. Some tools do not cut boxes off at the border, but they end before."""
FAR = 1.0
"""Distance from the box, relative to its longer side, from which a keypoint is reported."""
OUTSIDE_BOX = 0.1
"""Distance from the box, relative to its longer side, from which a keypoint counts as outside. In COCO's annotations,
one person in a hundred has half of the keypoints outside."""
MIN_PERCENT_SIDE = 200
"""Percentages are reported if the longer side of half of the images is larger than this, in pixels."""
MIN_EXAMPLES = 20
"""At least this many people are needed to report percentages, or a keypoint that nobody has."""
UNUSABLE_FILES = {"missing": "missing-file", "unreadable": "unreadable-file", "proportions": "wrong-size"}
"""The codes of the problems of a file (``FileCheck``) with which an image can neither be trained on nor predicted."""

_log = logging.getLogger(__name__)

Places = Mask | dict[int, str] | list[str] | bool
"""Where a problem is: a mask over the entries of a section, or texts by their rows; texts of other places; or, for a
problem of the whole file, whether it has it."""


@dataclass(frozen=True)
class Finding:
    """One kind of problem and its places: ids of images, annotations or categories, file names, or keypoint pairs."""

    severity: Literal["error", "warning"]
    code: str
    message: str
    remedy: str
    places: list[str]
    can_repair: bool = False
    """Whether ``fix_annotations`` repairs it, as far as other values or the files determine that."""
    can_drop: bool = False
    """Whether ``fix_annotations`` with ``drop`` leaves the places out: they are not too many."""

    @property
    def summary(self) -> str:
        """The problem and its first places, in one line."""
        text = self.message
        if self.places:
            text += ": " + to_single_line(", ".join(self.places[:SHOWN_PLACES]))[:SHOWN_CHARACTERS]
        if len(self.places) > SHOWN_PLACES:
            text += f" ... (+{len(self.places) - SHOWN_PLACES} more)"
        return text

    def __str__(self) -> str:
        return f"{self.severity}: {self.summary}\n  fix: {self.remedy} [{self.code}]"


@dataclass(frozen=True)
class Rule:
    """One kind of problem, and how to find and repair it."""

    severity: Literal["error", "warning"]
    """An error stops the other tools or leads to wrong data; a warning may be intended."""
    code: str
    """Short name, for programs that read ``lint --json``."""
    message: str
    """The entries with the problem, in the plural: "images without a file"."""
    remedy: str
    find: Callable[[AnnotationFile], Places]
    section: str = "annotations"
    """The section whose entries a mask or rows stand for. The places of a mask are their ids."""
    repair: Callable[[AnnotationFile, Counter[str]], None] | None = None
    """Repairs what can be derived, and counts it; see ``posenet.annotations.repair``."""
    drop: Literal["images", "annotations", "keypoints"] | None = None
    """What ``repair.leave_out`` leaves out, by rows of the section, so that the rest can be used."""
    drop_limit: float = 1.0
    """Largest share of the section that is left out. More are not single faults, and then the others are wrong too."""
    tolerance: float = 0.0
    """Largest number of places, relative to the number of annotations, with which a file is still read; if it is above
    0, also a file of any size with ``FEW_PLACES``."""
    unless: Collection[str] = ()
    """Codes of problems that explain this one, which is not looked for then."""

    def check(self, file: AnnotationFile) -> tuple[Finding | None, list[int]]:
        """The problem with its places, None if the file does not have it; and the rows of what may be left out."""
        found = self.find(file)
        entries = file.sections[self.section]
        if isinstance(found, np.ndarray):
            found = {row: entries[row].get("id") for row in np.flatnonzero(found).tolist()}
        if not found:
            return None, []
        rows = list(found) if isinstance(found, dict) and self.drop is not None else []
        if len(rows) > max(FEW_PLACES, self.drop_limit * len(entries)):
            rows = []
        texts = found.values() if isinstance(found, dict) else () if found is True else found
        places = [str(text) for text in texts if text is not None]
        can_repair = self.repair is not None
        return Finding(self.severity, self.code, self.message, self.remedy, places, can_repair, bool(rows)), rows


def lint_annotations(
    path: str | Path,
    images: str | Path | None = None,
    skeleton: Skeleton | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
) -> list[Finding]:
    """Find all problems of a COCO keypoint file, errors first; ``DataError`` if it is not a COCO file at all.

    With the folder of the ``images``, their files are checked too. See ``AnnotationFile`` for the other arguments.
    """
    return find_problems(AnnotationFile(path, select_sections(read_document(path), path), skeleton, images, exif_frame))


def find_problems(file: AnnotationFile) -> list[Finding]:
    """All problems of a file that has been read, errors first."""
    findings: dict[str, Finding] = {}
    for rule in RULES:
        if findings.keys().isdisjoint(rule.unless) and (finding := rule.check(file)[0]):
            findings[rule.code] = finding
    return sorted(findings.values(), key=lambda finding: finding.severity)


def list_errors(path: str | Path, errors: Sequence[Finding]) -> str:
    """How many kinds of errors a file has, with their codes."""
    kinds = pluralize(len(errors), "kind of error", "kinds of errors")
    return f"{path} has {kinds} ({', '.join(error.code for error in errors)})"


def refuse_errors(file: AnnotationFile, codes: Collection[str] | None = None) -> None:
    """Raise ``DataError`` for the first error of a file, with its first places and the remedy.

    Errors that concern only some annotations, such as a keypoint outside its image, are logged unless there are many.
    The ``codes`` are those of the rules that matter; None for all.
    """
    for rule in RULES:
        is_wanted = codes is None or rule.code in codes
        if rule.severity != "error" or not is_wanted or not (finding := rule.check(file)[0]):
            continue
        tolerated = max(FEW_PLACES, rule.tolerance * len(file.annotations)) if rule.tolerance else 0
        if max(len(finding.places), 1) > tolerated:
            raise DataError(
                f"{file.path}: {finding.summary}; {rule.remedy} (posenet annotations lint lists all problems)"
            )
        _log.warning("%s: %s; %s", file.path, finding.summary, rule.remedy)


class Repairs(NamedTuple):
    """What ``fix_annotations`` has done."""

    counts: dict[str, int]  # by what was repaired
    left_out: list[Finding]


def fix_annotations(
    path: str | Path,
    output: str | Path,
    images: str | Path | None = None,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    *,
    drop: bool = False,
    overwrite: bool = False,
) -> Repairs:
    """Write a repaired copy of a COCO keypoint file, completely or not at all.

    Args:
        images: folder of the image files, which determine sizes and file names; None leaves both as they are.
        exif_frame: frame of missing sizes of images with an EXIF orientation.
        drop: leave out what cannot be repaired: images with their annotations, annotations, or only the keypoints of
            an annotation, whose place the loss then ignores.
        overwrite: replace ``output`` if it exists. Neither the file nor an image that it lists is ever replaced.

    Raises:
        DataError: ``path`` cannot be read or is not a COCO file, ``output`` is an input, exists or cannot be written,
            or everything would be left out.
    """
    path = Path(path)
    output = Path(output)
    if is_standard_output(output):
        raise DataError("the repaired file cannot be written to standard output, because it is checked; name a file")
    check_outputs([output], itertools.chain([path], list_image_files(path, images)), overwrite=overwrite)
    document = read_document(path)
    sections = select_sections(document, path)

    def parse() -> AnnotationFile:
        return AnnotationFile(path, sections, None, images, exif_frame)

    file = parse()
    counts: Counter[str] = Counter()
    for repair_one in dict.fromkeys(rule.repair for rule in RULES if rule.repair is not None):
        num_done = counts.total()
        repair_one(file, counts)
        if counts.total() > num_done:
            file = parse()
    left_out: list[Finding] = []
    rows_to_drop: dict[str, set[int]] = {"images": set(), "annotations": set(), "keypoints": set()}
    for rule in RULES if drop else ():
        if rule.drop is not None:
            finding, rows = rule.check(file)
            if finding and not rows_to_drop[rule.drop].issuperset(rows):
                left_out.append(finding)
            rows_to_drop[rule.drop].update(rows)
    if emptied := repair.leave_out(file, **rows_to_drop):
        message = "images of which no annotation is left"
        left_out.append(Finding("error", "emptied-image", message, "correct their annotations", emptied))
    if left_out and not (file.images and file.annotations):
        raise DataError(f"nothing of {path} would be left; the first reason is {left_out[0].summary}")
    write_output(output, json.dumps(document))
    return Repairs(dict(counts), left_out)


# Images and their files


def _repeated_files(file: AnnotationFile) -> list[str]:
    names = Counter(str(PurePosixPath(file.file_names[row])) for row in np.flatnonzero(file.image_is_usable).tolist())
    return [name for name, count in names.items() if count > 1]


def _files_with(file: AnnotationFile, problem: str) -> dict[int, str]:
    """The files with a problem, and the details of it, by the rows of the images."""
    checks = {row: check for row, check in file.file_checks.items() if check.problem == problem}
    return {row: f"{check.name} ({check.details})" if check.details else check.name for row, check in checks.items()}


def _frames_by_setting(file: AnnotationFile) -> list[str]:
    return [
        f"{check.name} (orientation {check.orientation}, {check.frame})"
        for check in file.file_checks.values()
        if not check.problem and check.frame.reason == "setting"
    ]


# Categories


def _no_such_keypoints(file: AnnotationFile) -> list[str]:
    """How the keypoints of the category that has most of the skeleton's differ from these."""
    if file.skeleton is None or not file.category_has_keypoints.any() or file.category_is_used.any():
        return []
    expected = file.skeleton.file_names
    groups = [category.keypoints or () for category in file.parsed_categories]
    closest = max(groups, key=lambda names: len(set(names) & set(expected)))
    return [f"it has {compare_names(closest, expected)}"]


def _unusable_names(file: AnnotationFile) -> list[str]:
    """Names of keypoints that are empty, have blanks around them, or occur twice in a category."""
    counts = [Counter(group) for group in file.groups_of_names()]
    is_wrong = {name for count in counts for name in count if not name or name != name.strip() or count[name] > 1}
    return sorted(map(repr, is_wrong))


# Annotations


def _in_another_category(file: AnnotationFile) -> Mask:
    has_keypoints = np.array(["keypoints" in entry for entry in file.annotations], bool)
    return ~select_rows(file.category_has_keypoints, file.category_rows, True) & has_keypoints


def _wrong_crowd_flag(file: AnnotationFile) -> Mask:
    return file.is_used & np.array([entry.get("iscrowd") not in (None, 0, 1) for entry in file.annotations], bool)


def _wrong_count(file: AnnotationFile) -> Mask:
    stated = [entry.get("num_keypoints") for entry in file.annotations]
    differs = [value is not None and value != count for value, count in zip(stated, file.num_labelled.tolist())]
    return file.has_keypoints & file.keypoints.is_usable & np.array(differs, bool)


def _are_inside(file: AnnotationFile, sizes: np.ndarray) -> Mask:
    """(A,) bool: all labelled keypoints are in an image of (A, 2) height, width, or at its edge."""
    is_inside = ((file.points >= -EDGE_MARGIN) & (file.points <= sizes[:, None, ::-1] + EDGE_MARGIN)).all(axis=2)
    return (is_inside | ~file.is_labelled).all(axis=1)


def _fits_only_displayed(file: AnnotationFile) -> Mask:
    """(A,) bool: the image has the size of its stored pixels, but the keypoints fit only the displayed image."""
    sizes = file.sizes_of_annotations
    found = ~_are_inside(file, sizes) & _are_inside(file, sizes[:, ::-1])
    if found.any():  # else no file has to be opened
        sideways = [row for row, check in file.file_checks.items() if check.frame == AnnotatedFrame(1, "size")]
        found &= np.isin(file.image_rows, sideways)
    return found


def _outside(file: AnnotationFile) -> Mask:
    """Some labelled keypoints are outside the image, and not because the size is that of the other frame."""
    return ~_are_inside(file, file.sizes_of_annotations) & file.has_image & ~_fits_only_displayed(file)


def _exif_swapped(file: AnnotationFile) -> dict[int, str]:
    rows = np.flatnonzero(_fits_only_displayed(file)).tolist()
    ids = {int(file.image_rows[row]): file.annotation_ids.values[row] for row in rows}
    return {image: f"{file.file_names[image]} (annotation {number})" for image, number in ids.items()}


def _same_keypoints(file: AnnotationFile) -> Mask:
    is_copy = np.zeros(len(file.annotations), bool)
    seen: set[tuple[int, bytes]] = set()
    for row in np.flatnonzero(file.is_labelled_person & file.has_image).tolist():
        copy = int(file.image_rows[row]), file.keypoints.values[row].tobytes()
        is_copy[row] = copy in seen
        seen.add(copy)
    return is_copy


def _nothing_labelled(file: AnnotationFile) -> bool:
    is_readable = file.keypoints.is_usable[file.has_keypoints].all()
    return bool(file.category_is_used.any() and is_readable and not file.is_labelled_person.any())


def _never_labelled(file: AnnotationFile) -> list[str]:
    places = []
    for names, is_member in file.groups_of_names().items():
        is_labelled = file.is_labelled[file.is_labelled_person & is_member]  # (P, K)
        if len(is_labelled) >= MIN_EXAMPLES:
            count = pluralize(len(is_labelled), "annotation")
            places += [f"{name} in none of {count}" for name, labels in zip(names, is_labelled.T) if not labels.any()]
    return places


def _normalised(file: AnnotationFile) -> Mask:
    """Several keypoints are labelled, and all are fractions: between 0 and 1, not all 0."""
    is_fraction = ((file.points >= 0) & (file.points <= 1)).all(axis=2) | ~file.is_labelled
    is_candidate = file.is_labelled_person & file.has_image & (file.num_labelled >= 2) & is_fraction.all(axis=1)
    return is_candidate & (_ends_of_keypoints(file).max(axis=1) > 0)


def _one_place(file: AnnotationFile) -> Mask:
    """All labelled keypoints, and at least three, are at the same place; all False unless of many people."""
    is_person = file.is_labelled_person & (file.num_labelled >= 3)
    return _if_many(is_person & (_extents_of_keypoints(file) == 0).all(axis=1), is_person)


def _extents_of_keypoints(file: AnnotationFile) -> np.ndarray:
    """(A, 2) width and height of the labelled keypoints; negative without any."""
    is_labelled = file.is_labelled[:, :, None]
    low = np.where(is_labelled, file.points, np.inf).min(axis=1)
    high = np.where(is_labelled, file.points, -np.inf).max(axis=1)
    return np.asarray(high - low)


def _percent(file: AnnotationFile) -> bool:
    """No keypoint of many people is beyond 100, in images that are larger."""
    is_person = file.is_labelled_person & file.has_image
    if is_person.sum() < MIN_EXAMPLES or _ends_of_keypoints(file)[is_person].max() > 100:
        return False
    return bool(np.median(file.sizes_of_annotations[is_person].max(axis=1)) > MIN_PERCENT_SIDE)


def _unreached(file: AnnotationFile) -> bool:
    is_person = file.is_labelled_person & file.has_image
    ends = np.maximum(_ends_of_keypoints(file), _ends_of_boxes(file))
    reaches = (ends > REACH * file.sizes_of_annotations[:, ::-1]).any(axis=1)
    return bool(is_person.sum() >= MIN_REACHING and not reaches[is_person].any())


def _ends_of_keypoints(file: AnnotationFile) -> np.ndarray:
    """(A, 2) the largest x and y of the labelled keypoints; minus infinity without any."""
    return np.asarray(file.points.max(axis=1, where=file.is_labelled[..., None], initial=-np.inf))


# Boxes and outlines


def _ends_of_boxes(file: AnnotationFile) -> np.ndarray:
    """(A, 2) x and y of the lower right corners."""
    return np.asarray(file.boxes.values[:, :2] + file.boxes.values[:, 2:])


def _empty_box(file: AnnotationFile) -> Mask:
    return file.is_used & file.boxes.is_usable & (file.boxes.values[:, 2:].min(axis=1) == 0)


def _box_outside(file: AnnotationFile) -> Mask:
    limits = BOX_MARGIN * file.sizes_of_annotations[:, ::-1]
    return file.is_used & file.has_box & file.has_image & (_ends_of_boxes(file) > limits).any(axis=1)


def _box_of_corners(file: AnnotationFile) -> Mask:
    """The box is in the image and around the keypoints if it is two corners, and ends outside if it is not; all False
    unless of many people."""
    first, second = file.boxes.values[:, :2], file.boxes.values[:, 2:]
    sizes = file.sizes_of_annotations[:, ::-1]
    is_inside = (first >= -EDGE_MARGIN) & (second > first) & (second <= sizes + EDGE_MARGIN)
    has_keypoints = _ends_of_keypoints(file) - second <= OUTSIDE_BOX * (second - first).max(axis=1, keepdims=True)
    ends_outside = (first + second > CORNER_MARGIN * sizes).any(axis=1)
    is_person = file.is_used & ~file.is_crowd & file.has_box & file.has_image
    return _if_many(is_person & is_inside.all(axis=1) & has_keypoints.all(axis=1) & ends_outside, is_person)


def _box_elsewhere(file: AnnotationFile) -> Mask:
    """Half of the labelled keypoints, and more than one, are outside the box; all False unless of many people."""
    num_outside = (_distances_from_box(file) > OUTSIDE_BOX).sum(axis=1)
    is_person = file.is_labelled_person & file.has_box
    return _if_many(is_person & (num_outside >= 2) & (num_outside >= 0.5 * file.num_labelled), is_person)


def _far_from_box(file: AnnotationFile) -> Mask:
    return file.is_labelled_person & file.has_box & (_distances_from_box(file) > FAR).any(axis=1)


def _distances_from_box(file: AnnotationFile) -> np.ndarray:
    """(A, K) distance of the labelled keypoints from the box along the farther axis, relative to its longer side."""
    low = file.boxes.values[:, None, :2]
    size = file.boxes.values[:, None, 2:]
    beyond = np.maximum(low - file.points, file.points - low - size).max(axis=2).clip(min=0)
    return np.asarray(np.where(file.is_labelled, beyond / size.max(axis=2).clip(min=1), 0))


def _outline_elsewhere(file: AnnotationFile) -> Mask:
    """The box around the polygons and that of the annotation hardly overlap; all False unless of many people."""
    is_person = file.has_box & file.is_used & ~file.is_crowd
    outlines = {row: file.outlines.values[row] for row in np.flatnonzero(is_person).tolist()}
    polygons = {row: outline for row, outline in outlines.items() if isinstance(outline, list)}
    rows = list(polygons)
    # Plain numbers: arrays of so few take several times as long.
    low = [[min(min(polygon[axis::2]) for polygon in polygons[row]) for axis in (0, 1)] for row in rows]
    high = [[max(max(polygon[axis::2]) for polygon in polygons[row]) for axis in (0, 1)] for row in rows]
    corners = np.array([low, high], np.float64).reshape(2, -1, 2)
    starts, ends = file.boxes.values[rows, :2], _ends_of_boxes(file)[rows]
    common = (np.minimum(corners[1], ends) - np.maximum(corners[0], starts)).clip(min=0).prod(axis=1)
    union = file.boxes.values[rows, 2:].prod(axis=1) + (corners[1] - corners[0]).prod(axis=1) - common
    found = np.zeros(len(file.annotations), bool)
    found[rows] = common / union < MIN_OVERLAP
    return _if_many(found, is_person)


def _if_many(found: Mask, people: Mask) -> Mask:
    """The mask of a problem if it concerns many of the people, else all False."""
    return found & bool(found.sum() > max(FEW_PLACES, ELSEWHERE * people.sum()))


# fmt: off
RULES: tuple[Rule, ...] = (
    # Ids
    Rule("error", "image-id", "images whose id is no whole number, or that of an earlier one",
         "number the images, in image_id of their annotations too, and delete copies",
         lambda file: ~file.image_ids.is_usable, "images", drop="images"),
    Rule("error", "category-id", "categories whose id is no whole number, or that of an earlier one",
         "number the categories, in category_id of their annotations too, and delete copies",
         lambda file: ~file.category_ids.is_usable, "categories"),
    Rule("error", "annotation-id", "annotations whose id is no whole number, or that of an earlier one",
         "number the annotations, and delete copies",
         lambda file: ~file.annotation_ids.is_usable, repair=repair.number_annotations),

    # Images and their files
    Rule("error", "file-name", "images without a file name in the image folder",
         "write the path relative to the folder, without .. and without a drive or / at its beginning",
         lambda file: np.array([not name for name in file.file_names], bool), "images",
         repair=repair.shorten_paths, drop="images"),
    Rule("error", "missing-file", "images without a file in the image folder",
         "check the folder of the images, upper and lower case, suffixes, and that / and not \\ separates folders; "
         "restore the files, or delete the images and annotations",
         lambda file: _files_with(file, "missing"), "images", repair.shorten_paths, "images"),
    Rule("error", "unreadable-file", "files that cannot be decoded",
         "save them again as JPEG or PNG, or delete the images",
         lambda file: _files_with(file, "unreadable"), "images", drop="images"),
    Rule("error", "image-size", "images without a width and a height in whole pixels",
         "write the size of the image in which the keypoints were placed",
         lambda file: ~file.has_size, "images", repair.complete_sizes, "images"),
    Rule("error", "wrong-size", "images of other proportions than annotated",
         "restore the images that were annotated, or correct width and height if the keypoints fit these images",
         lambda file: _files_with(file, "proportions"), "images", drop="images"),
    Rule("warning", "resized", "images of another size than annotated, but of its proportions",
         "nothing if the images were resized: all tools scale the annotations; else correct width and height",
         lambda file: _files_with(file, "size"), "images"),
    Rule("error", "exif-swapped", "images with an EXIF orientation whose keypoints are outside the stored pixels, but "
         "inside the displayed image",
         "swap width and height of these images, so that they are those of the displayed image, and keep the "
         "keypoints; or import the JSON export of Label Studio in the place of its COCO export",
         _exif_swapped, "images", drop="images"),
    Rule("warning", "exif-by-setting", "images with an EXIF orientation, of a size that fits both frames: "
         "data.exif_frame decides",
         "look at some with posenet build-hdf5 --preview; if the keypoints are wrong, use the other frame in all tools "
         "(--set data.exif_frame=stored); do not change the coordinates",
         _frames_by_setting),
    Rule("error", "duplicate-file", "files with several entries in images, each without the annotations of the others",
         "let all annotations name one of the entries, and delete the others",
         _repeated_files),

    # Categories and references
    Rule("error", "no-keypoints", "no category has keypoints",
         'give the category "keypoints": names in the order of the annotations',
         lambda file: not file.category_has_keypoints.any()),
    Rule("error", "no-such-keypoints", "no category has exactly the keypoints of the skeleton",
         "write them into the category as the skeleton has them, and the numbers of its annotations in the same order, "
         "0, 0, 0 for a keypoint that is missing; or use the skeleton of this file, which posenet annotations skeleton "
         "drafts", _no_such_keypoints),
    Rule("error", "keypoint-name", "names of keypoints that are repeated or empty, or begin or end with a blank",
         "give each keypoint of a category a name of its own, without blanks around it", _unusable_names),
    Rule("warning", "other-keypoints", "categories with other keypoints than the skeleton; the tools leave them out",
         "draft a skeleton for them with posenet annotations skeleton --category",
         lambda file: file.category_has_keypoints & ~file.category_is_used, "categories",
         unless=("no-such-keypoints",)),
    Rule("error", "no-image", "annotations of images that are not listed", "list the image, or delete the annotation",
         lambda file: file.image_rows == UNLISTED, drop="annotations"),
    Rule("error", "no-such-category", "annotations of categories that are not listed",
         "correct category_id, or list the category", lambda file: file.category_rows == UNLISTED,
         drop="annotations"),
    Rule("warning", "no-category", "annotations with keypoints in a category that lists none, which are left out",
         "correct category_id", _in_another_category),

    # Keypoints
    Rule("error", "keypoint-values", "annotations without three finite numbers, x, y, visibility, for every keypoint "
         "of their category",
         "write numbers for every keypoint of the category, not text in quotation marks and not true or false; write "
         "0, 0, 0 only for a keypoint that is not labelled",
         lambda file: file.has_keypoints & ~file.keypoints.is_usable, drop="keypoints"),
    Rule("error", "visibility", "annotations with a visibility other than 0, 1 and 2",
         "write 0 for not labelled, 1 for hidden, 2 for visible; a confidence is not a visibility",
         lambda file: (~np.isin(file.keypoints.values[..., 2], (0, 1, 2))).any(axis=1),
         drop="keypoints", drop_limit=OUTSIDE),
    Rule("warning", "nothing-labelled", "no annotation has a labelled keypoint",
         "check that keypoints are x, y, visibility, with visibility 1 or 2 where labelled", _nothing_labelled),
    Rule("warning", "never-labelled", "keypoints that no annotation has",
         "look for them in the annotations; if they do not exist, leave them out of the category and of all "
         "annotations: the network would learn that they are nowhere", _never_labelled),
    Rule("error", "normalised", "annotations with keypoints between 0 and 1: fractions of the image, not pixels",
         "multiply x by the width of the image and y by its height, in boxes too if they are fractions", _normalised,
         drop="keypoints", drop_limit=OUTSIDE),
    Rule("error", "one-place", "annotations with all keypoints at the same place",
         "write the position of each keypoint, and 0, 0, 0 for one that is not labelled", _one_place),
    Rule("error", "percent", "no keypoint is beyond 100 on either axis, in larger images: percentages of the image, "
         "not pixels",
         "multiply x by width / 100 and y by height / 100 of the image, in boxes too if they are percentages",
         _percent, unless=("normalised", "one-place")),
    Rule("error", "outside", "annotations with labelled keypoints outside their image",
         "if images were resized, scale keypoints, boxes and outlines too, or restore the images; if images may be "
         "turned, as photographs of phones are, run posenet annotations lint with --images first; if only a few are "
         "outside, write 0, 0, 0 for them",
         _outside, drop="keypoints", drop_limit=OUTSIDE, tolerance=OUTSIDE),
    Rule("warning", "unreached", "no keypoint or box reaches the right or the lower fifth of an image",
         "look at some with posenet build-hdf5 --preview; if images were enlarged after they were annotated, scale "
         "keypoints, boxes and outlines too", _unreached, unless=("normalised", "percent")),
    Rule("warning", "unlabelled-place", "annotations that have keypoints with coordinates but visibility 0, which are "
         "not used",
         "write visibility 1 or 2 if the coordinates are right, else 0, 0, 0",
         lambda file: (~file.is_labelled & (file.points != 0).any(axis=2)).any(axis=1)),
    Rule("warning", "labelled-at-zero", "annotations with labelled keypoints at (0, 0)",
         "write visibility 0 where the position is not known",
         lambda file: (file.is_labelled & (file.points == 0).all(axis=2)).any(axis=1)),
    Rule("warning", "same-keypoints", "annotations with exactly the keypoints of another one in the same image",
         "delete the copy", _same_keypoints),

    # Boxes, areas and outlines
    Rule("error", "crowd-flag", "annotations with an iscrowd other than 0 and 1", "write 0 or 1", _wrong_crowd_flag,
         drop="annotations"),
    Rule("warning", "damaged-outline", "outlines that are damaged, or of an image of another size: the box replaces "
         "what cannot be used",
         "write a list of polygons, [[x, y, x, y, ...]], each of three or more points, or run lengths of the image's "
         "size",
         lambda file: file.outlines.is_damaged),
    Rule("error", "no-box", "annotations without a box, or with a negative width or height",
         "write bbox as x, y of the upper left corner, width, height, in numbers",
         lambda file: file.is_used & (~file.boxes.is_usable | (file.boxes.values[:, 2:] < 0).any(axis=1)),
         repair=repair.compute_boxes, drop="annotations"),
    Rule("error", "empty-box", "boxes without a width or a height",
         "write bbox as x, y of the upper left corner, then a width and a height above 0",
         _empty_box, repair=repair.compute_boxes, drop="annotations", tolerance=FEW),
    Rule("error", "box-corners", "boxes that end outside their image, but are inside if they are two corners",
         "write bbox as x, y, width, height, not as two corners: subtract x and y from the other corner",
         _box_of_corners),
    Rule("error", "box-outside", "boxes that reach far beyond their image",
         "write bbox as x, y, width, height, in pixels of the image",
         _box_outside, drop="annotations", drop_limit=OUTSIDE, tolerance=OUTSIDE,
         unless=("box-corners",)),
    Rule("error", "box-elsewhere", "annotations with most labelled keypoints outside their own box",
         "write keypoints and bbox in pixels of the same image, keypoints as x, y, visibility, and bbox as x, y of the "
         "upper left corner, width, height",
         _box_elsewhere, unless=("normalised", "percent")),
    Rule("error", "outline-elsewhere", "annotations whose outline and box are at different places",
         "write segmentation and bbox in pixels of the same image", _outline_elsewhere),
    Rule("warning", "far-from-box", "annotations with labelled keypoints far outside their own box",
         "look at the image; correct the box, or the keypoints if they belong to someone else or to a resized image",
         _far_from_box, unless=("normalised", "percent")),
    Rule("error", "no-area", "annotations without an area",
         f"write the area of the outline in square pixels, or {SHARE_OF_BOX} of the box where there is no outline",
         lambda file: file.is_used & (~file.areas.is_usable | (file.areas.values < 0)),
         repair=repair.compute_areas, drop="annotations"),
    Rule("error", "zero-area", "annotations with area 0, which no evaluation can match",
         f"write the area of the outline in square pixels, or {SHARE_OF_BOX} of the box where there is no outline",
         lambda file: file.is_used & ~file.is_crowd & file.areas.is_usable & (file.areas.values == 0),
         repair=repair.compute_areas, drop="annotations", tolerance=FEW),
    Rule("warning", "box-area", "annotations without an outline whose area is that of the whole box, so that the AP is "
         "too high",
         f"write {SHARE_OF_BOX} of the box, the median of COCO's people, or the area of an outline",
         repair.areas_of_boxes, repair=repair.compute_areas),
    Rule("warning", "tiny-area", "annotations whose area is at most 1, in a box of much more",
         "write the area in square pixels of the image, not as a share of it: no training sample is centred on people "
         "that small", repair.tiny_areas, repair=repair.compute_areas),
    Rule("warning", "num-keypoints", "annotations with a num_keypoints other than the number of labelled ones",
         "count the keypoints with visibility above 0; the tools here count them themselves",
         _wrong_count, repair=repair.count_keypoints),

    # Left and right
    Rule("error", "flip-pair", "pairs of the skeleton that the names contradict",
         "pair every left keypoint with the right one of the same name", left_right.contradicting_pairs),
    Rule("warning", "flip-missing", "left and right names that the skeleton does not pair",
         "add them to left_right, or a mirrored image teaches the wrong side", left_right.missing_pairs),
    Rule("warning", "no-sides", "the skeleton or the names do not say which keypoints are left and right",
         "list the pairs in left_right of the skeleton; if the object has no sides, write mirror = true there",
         left_right.unknown_sides),
    Rule("warning", "swapped-sides", "left and right are exchanged in all pairs, as faces seen from the front show",
         "swap left and right in the names of the category, or the keypoints of all pairs in all annotations",
         left_right.exchanged_faces),
    Rule("warning", "swapped-here", "annotations in which one pair of left and right is the other way round, unlike in "
         "nearly all annotations",
         "look at the image; swap the two keypoints if they are confused",
         left_right.annotations_with_a_swapped_pair),
)
# fmt: on
"""In the order in which reading finds them and repair applies them."""
