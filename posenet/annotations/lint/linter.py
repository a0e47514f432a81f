"""Looks through a COCO keypoint file for what would harm training or evaluation, and says how to mend it.

Unlike ``data/coco.py``, which stops at the first fault, it reads on whatever it finds.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from tqdm import tqdm

from posenet.annotations.coco_file import MAX_NUMBER, MAX_SIDE, MIN_AREA, lies_inside, read_document
from posenet.annotations.lint.findings import Finding, Findings
from posenet.annotations.lint.left_right import check_sides
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.images.decoding import MAX_PIXELS, declared_size
from posenet.skeleton import Skeleton


def lint_annotations(
    path: str | Path, images: str | Path | None = None, skeleton: Skeleton | None = None
) -> list[Finding]:
    """Examine a COCO keypoint file.

    Args:
        images: folder of the images, which must then be there and of the annotated size.
        skeleton: what the keypoints should be; None takes the names and pairs of the file's own categories.

    Returns:
        Errors first, then warnings.

    Raises:
        DataError: not JSON, or not a COCO file at all.
    """
    document = _read(Path(path))
    findings = Findings()
    pictures = _check_images(document["images"], findings)
    if images is not None:
        _check_files(pictures, Path(images), findings)
    names = _check_categories(document["categories"], skeleton, findings)
    listed = {category["id"] for category in document["categories"] if type(category.get("id")) is int}
    people = _check_annotations(document["annotations"], pictures, listed, names, findings)
    for keypoints in dict.fromkeys(map(tuple, names.values())):
        own = [entry for entry in people if names[entry["category_id"]] == list(keypoints)]
        check_sides(
            [entry.get("id") for entry in own],
            np.array([entry["points"] for entry in own]),
            keypoints,
            skeleton,
            findings,
        )
    return findings.sorted()


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    document = read_document(path)
    for key in ("images", "annotations", "categories"):
        entries = document.get(key) if isinstance(document, dict) else None
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{path}: {key!r} is missing or not a list of objects; give a COCO keypoint file")
    return document


def _twice(entries: list[dict[str, Any]], kind: str, findings: Findings) -> None:
    ids = [entry.get("id") for entry in entries]
    for number in ids:
        if type(number) is not int or abs(number) >= 2**63:
            findings.add(
                "error",
                f"{kind}-id",
                f"{kind}s whose id is not a whole number",
                "give every one a whole number of its own",
                number,
            )
    for number, count in Counter(number for number in ids if type(number) is int).items():
        if count > 1:
            findings.add(
                "error",
                f"duplicate-{kind}-id",
                f"{kind} ids that appear more than once",
                "number them anew; annotations that are doubled altogether are to be deleted once",
                number,
            )


def _check_images(images: list[dict[str, Any]], findings: Findings) -> dict[int, dict[str, Any]]:
    """The images that can be used, by id."""
    _twice(images, "image", findings)
    sound = {}
    for image in images:
        number, name = image.get("id"), image.get("file_name")
        sides = [image.get(key) for key in ("width", "height")]
        if not isinstance(name, str) or not name or not lies_inside(name):
            findings.add(
                "error",
                "file-name",
                "images without a file name inside the image folder",
                "write the path relative to the folder, without ..",
                number,
            )
        elif not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
            findings.add(
                "error",
                "image-size",
                "images without a width and a height in whole pixels",
                "write the size of the image as stored, before any EXIF rotation",
                number,
            )
        elif type(number) is int:
            sound[number] = image
    for name, count in Counter(image["file_name"] for image in sound.values()).items():
        if count > 1:
            findings.add(
                "warning",
                "duplicate-file",
                "files that several images name",
                "merge the images and let their annotations name the one that stays",
                name,
            )
    return sound


def _check_files(pictures: dict[int, dict[str, Any]], folder: Path, findings: Findings) -> None:
    names = [image["file_name"] for image in pictures.values()]
    with ThreadPoolExecutor(usable_cores()) as pool, closing(pool.map(partial(_size_of, folder), names)) as sizes:
        shown = tqdm(zip(pictures.values(), sizes), "pictures", len(names), unit="image", disable=None)
        for image, size in shown:
            if size is None:
                findings.add(
                    "error",
                    "missing-file",
                    f"images without a file in {folder}",
                    "restore the files, or delete the images and their annotations",
                    image["file_name"],
                )
            elif not size:
                findings.add(
                    "error",
                    "unreadable-file",
                    "files that cannot be decoded",
                    "save them anew as JPEG or PNG, or delete the images",
                    image["file_name"],
                )
            elif size != (image["height"], image["width"]):
                findings.add(
                    "error",
                    "wrong-size",
                    "images of another size than annotated",
                    "correct width and height to those of the file as stored; if the image was resized, "
                    "scale the annotations too",
                    image["file_name"],
                )


def _size_of(folder: Path, name: str) -> tuple[int, ...] | None:
    """(height, width) of an image as stored; empty where it cannot be decoded, None where there is no file."""
    path = folder / name
    if not os.path.isfile(path):
        return None
    try:
        data = np.fromfile(path, np.uint8)
        sound = len(data) and math.prod(declared_size(data) or ()) <= MAX_PIXELS
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION) if sound else None
    except (OSError, cv2.error):
        pixels = None
    return () if pixels is None else pixels.shape[:2]


def _check_categories(
    categories: list[dict[str, Any]], skeleton: Skeleton | None, findings: Findings
) -> dict[int, list[str]]:
    """The keypoint names of the categories that have keypoints, by id."""
    _twice(categories, "category", findings)
    names: dict[int, list[str]] = {}
    for category in categories:
        keypoints = category.get("keypoints")
        if isinstance(keypoints, list) and keypoints and type(category.get("id")) is int:
            names[category["id"]] = [str(name) for name in keypoints]
    if not names:
        findings.add(
            "error",
            "no-keypoints",
            "no category names keypoints",
            'give the category "keypoints": a list of names in the order of the annotations',
        )
    if skeleton is not None:
        for number in [number for number, own in names.items() if own != list(skeleton.file_names)]:
            findings.add(
                "warning",
                "other-keypoints",
                "categories with other keypoints than the skeleton, which the tools leave out",
                "draft a skeleton for them with posenet skeleton --category",
                number,
            )
            names.pop(number)
        if not names:
            findings.add(
                "error",
                "no-such-keypoints",
                "no category has the keypoints of the skeleton",
                f"the order and spelling must be {', '.join(skeleton.file_names)}",
            )
    if len({tuple(own) for own in names.values()}) > 1:
        findings.add(
            "warning",
            "mixed-categories",
            "categories with different keypoints in one file",
            "train one network for each: name its skeleton, which leaves the others out",
            ", ".join(map(str, names)),
        )
    for number, own in names.items():
        if len(set(own)) < len(own):
            findings.add("error", "keypoint-twice", "categories that name a keypoint twice", "rename one", number)
    return names


def _check_annotations(
    entries: list[dict[str, Any]],
    pictures: dict[int, dict[str, Any]],
    listed: set[int],
    names: dict[int, list[str]],
    findings: Findings,
) -> list[dict[str, Any]]:
    """The annotations whose keypoints can be used; ``listed`` are the ids of all categories."""
    _twice(entries, "annotation", findings)
    usable = []
    seen: dict[tuple[int, bytes], dict[str, Any]] = {}
    for entry in entries:
        number, category = entry.get("id"), entry.get("category_id")
        image = pictures[entry["image_id"]] if _known(entry.get("image_id"), pictures) else None
        if not image:
            findings.add(
                "error",
                "no-image",
                "annotations of images that are not listed or not usable",
                "list the image, or delete the annotation",
                number,
            )
        if not _known(category, listed):
            findings.add(
                "error",
                "no-such-category",
                "annotations of categories that are not listed",
                "correct category_id, or list the category",
                number,
            )
            continue
        if category not in names:
            if "keypoints" in entry:
                findings.add(
                    "warning",
                    "no-category",
                    "annotations with keypoints in a category without, which the tools leave out",
                    "correct category_id",
                    number,
                )
            continue
        _check_shape(entry, image, findings)
        points = _keypoints(entry, len(names[category]), findings)
        if points is None:
            continue
        _check_points(entry, points, image, findings)
        if not entry.get("iscrowd") and (points[:, 2] > 0).any():
            usable.append(entry | {"points": points})
            if image and seen.setdefault((image["id"], points.tobytes()), entry) is not entry:
                findings.add(
                    "warning",
                    "same-keypoints",
                    "annotations with the very keypoints of another one in the same image",
                    "delete the copy",
                    number,
                )
    if names and not usable:
        findings.add(
            "error",
            "nothing-labelled",
            "no annotation has a labelled keypoint",
            "check that keypoints are x, y, visibility with visibility 1 or 2 where labelled",
        )
    return usable


def _check_shape(entry: dict[str, Any], image: dict[str, Any] | None, findings: Findings) -> None:
    """Area, box and crowd flag."""
    number, area, box = entry.get("id"), entry.get("area"), entry.get("bbox")
    if not _is_number(area) or area < 0:
        findings.add(
            "error",
            "no-area",
            "annotations without an area",
            "write the area of the outline in square pixels, or of the box where there is no outline",
            number,
        )
    elif area == 0 and not entry.get("iscrowd"):
        findings.add(
            "error",
            "zero-area",
            "annotations whose area is 0, which no evaluation can match",
            "write the area of the outline in square pixels, or of the box where there is no outline",
            number,
        )
    elif area < MIN_AREA and not entry.get("iscrowd") and entry.get("num_keypoints"):
        findings.add(
            "warning",
            "small",
            f"annotated objects smaller than {MIN_AREA} square pixels, too small to train on",
            "nothing, if they are that small; else correct area",
            number,
        )
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
        findings.add("error", "no-box", "annotations without a box", "write bbox as x, y, width, height", number)
    elif min(box[2:]) <= 0:
        findings.add(
            "error",
            "empty-box",
            "boxes without a width or a height",
            "write bbox as x, y, width, height, not as two corners",
            number,
        )
    elif image and (box[0] + box[2] > 1.5 * image["width"] or box[1] + box[3] > 1.5 * image["height"]):
        findings.add(
            "warning",
            "box-outside",
            "boxes that reach far beyond their image",
            "write bbox as x, y, width, height, not as two corners",
            number,
        )
    if entry.get("iscrowd", 0) not in (0, 1):
        findings.add("error", "crowd-flag", "annotations whose iscrowd is neither 0 nor 1", "write 0 or 1", number)


def _keypoints(entry: dict[str, Any], count: int, findings: Findings) -> np.ndarray | None:
    """(K, 3) float64, or None where there are none to be used."""
    if "keypoints" not in entry:
        return None
    number, values = entry.get("id"), entry["keypoints"]
    if not isinstance(values, list) or len(values) != 3 * count:
        findings.add(
            "error",
            "keypoint-count",
            f"annotations that do not hold {count} keypoints of x, y, visibility",
            "write three numbers for every keypoint of the category, 0, 0, 0 where it is not labelled",
            number,
        )
        return None
    if not all(map(_is_number, values)):
        findings.add(
            "error",
            "not-a-number",
            "keypoints that are not finite numbers",
            "write 0, 0, 0 for what is not known",
            number,
        )
        return None
    return np.array(values, np.float64).reshape(count, 3)


def _check_points(entry: dict[str, Any], points: np.ndarray, image: dict[str, Any] | None, findings: Findings) -> None:
    number, (x, y, visible) = entry.get("id"), points.T
    labelled = visible > 0
    if not np.isin(visible, (0, 1, 2)).all():
        findings.add(
            "error",
            "visibility",
            "keypoints whose visibility is not 0, 1 or 2",
            "write 0 for not labelled, 1 for hidden, 2 for visible; a score is none",
            number,
        )
    if ((x != 0) | (y != 0))[~labelled].any():
        findings.add(
            "warning",
            "unlabelled-place",
            "keypoints with a place but visibility 0, which are not used",
            "write visibility 1 or 2 where the place is meant, else 0, 0, 0",
            number,
        )
    if (labelled & (x == 0) & (y == 0)).any():
        findings.add(
            "warning",
            "labelled-at-zero",
            "labelled keypoints at (0, 0)",
            "write visibility 0 where the keypoint is not known",
            number,
        )
    stated = entry.get("num_keypoints")
    if stated is not None and stated != int(labelled.sum()):
        findings.add(
            "warning",
            "num-keypoints",
            "annotations whose num_keypoints is not the number of labelled ones",
            "count the keypoints with visibility above 0; the tools here count by themselves",
            number,
        )
    if image and labelled.any():
        inside = (x >= 0) & (y >= 0) & (x <= image["width"]) & (y <= image["height"])
        if not inside[labelled].all():
            findings.add(
                "error",
                "outside",
                "labelled keypoints outside their image",
                "write 0, 0, 0 for what cannot be seen; if all are, x and y or the image's size are wrong",
                number,
            )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < MAX_NUMBER


def _known(number: Any, ids: Container[int]) -> bool:
    """Whether a value, which may be anything, is one of the ids."""
    return type(number) is int and number in ids
