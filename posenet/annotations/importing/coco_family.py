"""COCO's keypoint files, and those that keep something of their own in the same form.

COCO-WholeBody and Halpe (133 and 136 keypoints), and PoseTrack18 (a file for each video).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from posenet.annotations.coco import COCO_CATEGORY, Entry, select_sections
from posenet.annotations.importing.image_files import ImageFiles
from posenet.annotations.importing.imported import (
    ImportedAnnotations,
    flip_idx_of,
    readable,
)
from posenet.errors import DataError
from posenet.skeleton import COCO

FINGERS = "thumb forefinger middle_finger ring_finger pinky_finger".split()
BODY = COCO.file_names
FEET = tuple(f"{side}_{part}" for side in ("left", "right") for part in ("big_toe", "small_toe", "heel"))
FACE = tuple(f"face-{number}" for number in range(68))
HANDS = {
    side: (f"{side}_hand_root", *(f"{side}_{finger}{number}" for finger in FINGERS for number in range(1, 5)))
    for side in ("left", "right")
}
WHOLE_BODY = (*BODY, *FEET, *FACE, *HANDS["left"], *HANDS["right"])
"""The 133 keypoints of COCO-WholeBody."""
HALPE_BODY = (
    *BODY, "head", "neck", "hip", "left_big_toe", "right_big_toe", "left_small_toe", "right_small_toe", "left_heel",
    "right_heel",
)  # fmt: skip
HALPE = (*HALPE_BODY, *FACE, *HANDS["left"], *HANDS["right"])
"""The 136 keypoints of Halpe; the first 26 are a set of their own."""
FACE_TWINS = [
    *((number, 16 - number) for number in range(8)), *((17 + number, 26 - number) for number in range(5)), (31, 35),
    (32, 34), (36, 45), (37, 44), (38, 43), (39, 42), (40, 47), (41, 46), (48, 54), (49, 53), (50, 52), (55, 59),
    (56, 58), (60, 64), (61, 63), (65, 67),
]  # fmt: skip
"""Pairs of left and right among the 68 keypoints of a face."""

PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "whole": (
        WHOLE_BODY,
        ("keypoints", "foot_kpts", "face_kpts", "lefthand_kpts", "righthand_kpts"),
        "bbox",
    ),
    "body": (BODY, ("keypoints",), "bbox"),
    "feet": (FEET, ("foot_kpts",), "bbox"),
    "face": (FACE, ("face_kpts",), "face_box"),
    "left_hand": (HANDS["left"], ("lefthand_kpts",), "lefthand_box"),
    "right_hand": (HANDS["right"], ("righthand_kpts",), "righthand_box"),
}
"""Of what COCO-WholeBody can be read as: the keypoints, the lists of an annotation that have them, and its box."""
_LENGTHS = {len(names): names for names in (WHOLE_BODY, HALPE, HALPE_BODY)}


def twins_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """The pairs of left and right among keypoints of a body, of hands and of a face with 68 keypoints."""
    sides = [(name, f"right{name[4:]}") for name in names if name.startswith("left")]
    pairs = [*sides, *((FACE[a], FACE[b]) for a, b in FACE_TWINS)]
    return [(a, b) for a, b in pairs if a in names and b in names]


def edges_of(names: Sequence[str]) -> list[list[int]]:
    """The edges, in numbers from 1, of keypoints of a body, feet and hands; the face has none."""
    pairs = [(BODY[a - 1], BODY[b - 1]) for a, b in COCO_CATEGORY["skeleton"]]
    for side, hand in HANDS.items():
        pairs += [(f"{side}_ankle", f"{side}_{part}") for part in ("heel", "big_toe", "small_toe")]
        pairs.append((f"{side}_wrist", hand[0]))
        for start in range(1, len(hand), 4):
            chain = (hand[0], *hand[start : start + 4])
            pairs += itertools.pairwise(chain)
    pairs += [("nose", "head"), ("head", "neck"), ("neck", "hip")]
    number = {name: index for index, name in enumerate(names, 1)}
    return [[number[a], number[b]] for a, b in pairs if a in number and b in number]


def import_coco(
    document: dict[str, Any], path: Path, images: str | Path | None = None, part: str | None = None
) -> ImportedAnnotations:
    """Read a COCO keypoint file, or one of its family.

    Args:
        part: of COCO-WholeBody, one of ``PARTS``; None takes all 133 keypoints.

    Raises:
        DataError: the content is not that of a COCO file, has no such part, or its images are not found.
    """
    sections = select_sections(document, path, ["images"])
    is_whole_body = any("face_kpts" in entry or "foot_kpts" in entry for entry in sections["annotations"])
    if part is not None and part not in PARTS:
        raise DataError(f"part={part} is none of {', '.join(PARTS)}; choose one of them")
    if part is not None and not is_whole_body:
        raise DataError(f"{path} has one list of keypoints; part={part} is for COCO-WholeBody, leave it out")
    with readable(path):
        if is_whole_body:
            sections = _read_parts(sections, PARTS[part or "whole"], part or "whole")
        sections = sections | {"categories": _name_keypoints(sections)}
    folder, listed = _locate(sections["images"], path, images)
    return ImportedAnnotations(dict(document) | sections | {"images": listed}, folder, ())


def _read_parts(
    sections: dict[str, list[Entry]], part: tuple[tuple[str, ...], tuple[str, ...], str], name: str
) -> dict[str, list[Entry]]:
    """The annotations of COCO-WholeBody with the keypoints of one part, or of all.

    A person without the part keeps the box of the whole person, which training then ignores.
    """
    names, keys, box = part
    is_object = name in ("face", "left_hand", "right_hand")
    annotations = []
    for entry in sections["annotations"]:
        values = [value for key in keys for value in entry.get(key) or []]
        count = 3 * len(names)
        values = values if len(values) == count else (values + [0] * count)[:count]
        own: Entry = {key: entry[key] for key in ("id", "image_id", "category_id", "iscrowd") if key in entry}
        own |= {"keypoints": values, "bbox": entry.get("bbox")}
        if not is_object:
            own |= {key: entry[key] for key in ("segmentation", "area") if key in entry}
        elif any(values[2::3]) and all(side > 0 for side in (entry.get(box) or [0])[2:]):
            own["bbox"] = entry[box]
        annotations.append(own)
    label = {"name": name} if is_object else {}
    shape = {"keypoints": list(names), "skeleton": edges_of(names), "flip_idx": flip_idx_of(names, twins_of(names))}
    categories = [category | label | shape for category in sections["categories"]]
    return sections | {"annotations": annotations, "categories": categories}


def _name_keypoints(sections: dict[str, list[Entry]]) -> list[Entry]:
    """The categories, with keypoints named by their number where one lists none, or only COCO's: those of WholeBody and
    Halpe."""
    categories = [dict(entry) for entry in sections["categories"]]
    lengths = Counter(len(entry["keypoints"]) for entry in sections["annotations"] if entry.get("keypoints"))
    names = _LENGTHS.get(next(iter(lengths)) // 3) if len(lengths) == 1 else None
    for category in categories if names else []:
        if tuple(category.get("keypoints") or ()) in ((), BODY):
            category |= {
                "keypoints": list(names or ()),
                "skeleton": edges_of(names or ()),
                "flip_idx": flip_idx_of(names or (), twins_of(names or ())),
            }
    return categories


def import_posetrack(documents: Sequence[dict[str, Any]], path: Path, images: str | Path | None) -> ImportedAnnotations:
    """Read a folder with a file for each video as one set. Ids that two files have are numbered anew."""
    sections: dict[str, list[Entry]] = {"images": [], "annotations": [], "categories": []}
    for document in documents:
        own = select_sections(document, path, ["images"])
        if sections["categories"] and own["categories"] != sections["categories"]:
            raise DataError(f"the files of {path} have different categories; import each of them alone")
        sections["categories"] = own["categories"]
        first = len(sections["images"]) + 1
        numbers = {image.get("id"): number for number, image in enumerate(own["images"], first)}
        sections["images"] += [image | {"id": numbers[image.get("id")]} for image in own["images"]]
        sections["annotations"] += [
            entry | {"image_id": numbers.get(entry.get("image_id")), "id": number}
            for number, entry in enumerate(own["annotations"], len(sections["annotations"]) + 1)
        ]
    return import_coco(sections, path, images)


def _locate(listed: Sequence[Entry], path: Path, images: str | Path | None) -> tuple[Path, list[Entry]]:
    """The folder of the images, and their entries with names relative to it.

    Names stay as they are where they are right below some folder; else they are found by the ends of their paths.
    """
    files = ImageFiles.near(path, images)
    names = [image["file_name"] for image in listed if isinstance(image.get("file_name"), str)]
    if images is not None and any((files.folder / name).is_file() for name in names[:100] if len(name) < 4096):
        return files.folder, list(listed)
    found, _ = files.require(names, path)
    bases = Counter(_base(file, name) for name, file in found.items())
    [(base, count)] = bases.most_common(1)
    if base is not None and count == len(found):
        return base, list(listed)
    renamed = {name: file.relative_to(files.folder).as_posix() for name, file in found.items()}
    return files.folder, [
        image | {"file_name": renamed[image["file_name"]]} if image.get("file_name") in renamed else image
        for image in listed
    ]


def _base(file: Path, name: str) -> Path | None:
    """The folder in which a file has this name; None if only the end of its path is the same."""
    parts = PurePosixPath(name).parts
    return Path(*file.parts[: -len(parts)]) if file.parts[-len(parts) :] == parts else None
