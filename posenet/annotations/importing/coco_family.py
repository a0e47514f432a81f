"""COCO's keypoint files, and those that keep something of their own in the same form.

COCO-WholeBody and Halpe (133 and 136 keypoints), and PoseTrack18 (a file for each video).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from posenet.annotations.coco import Entry, select_sections, shape_of
from posenet.annotations.image_files import find_images_near
from posenet.annotations.importing.imported import ImportedAnnotations, Source
from posenet.errors import DataError
from posenet.skeleton import COCO

FINGERS = "thumb forefinger middle_finger ring_finger pinky_finger".split()
BODY = COCO.file_names
FEET = tuple(f"{side}_{part}" for side in ("left", "right") for part in ("big_toe", "small_toe", "heel"))
FACE = tuple(f"face-{number}" for number in range(68))
LEFT_HAND, RIGHT_HAND = (
    (f"{side}_hand_root", *(f"{side}_{finger}{number}" for finger in FINGERS for number in range(1, 5)))
    for side in ("left", "right")
)
WHOLE_BODY = (*BODY, *FEET, *FACE, *LEFT_HAND, *RIGHT_HAND)
"""The 133 keypoints of COCO-WholeBody."""
KEPT = ("id", "image_id", "category_id", "iscrowd", "bbox", "segmentation", "area")
"""What annotations of COCO-WholeBody keep beside their keypoints."""
HALPE_FEET = [f"{side}_{part}" for part in ("big_toe", "small_toe", "heel") for side in ("left", "right")]
HALPE_BODY = (*BODY, "head", "neck", "hip", *HALPE_FEET)
HALPE = (*HALPE_BODY, *FACE, *LEFT_HAND, *RIGHT_HAND)
"""The 136 keypoints of Halpe; the first 26 are a set of their own."""

WHOLE_BODY_LISTS = ("keypoints", "foot_kpts", "face_kpts", "lefthand_kpts", "righthand_kpts")
"""The lists of an annotation that have them, in this order."""
_LENGTHS = {len(names): names for names in (WHOLE_BODY, HALPE, HALPE_BODY)}


def import_coco(source: Source) -> ImportedAnnotations:
    """Read a COCO keypoint file, or one of its family."""
    document, path = source.content, source.path
    sections = select_sections(document, path, ["images"])
    annotations = sections["annotations"]
    if (document.get("info") or {}).get("contributor") == "Label Studio":
        boxes = Counter(str(entry.get("image_id")) for entry in annotations if not entry.get("keypoints"))
        if max(boxes.values(), default=0) > 1:
            raise DataError(
                f"{path} joins the keypoints of several objects; export the project from Label Studio as JSON"
            )
    if any("face_kpts" in entry or "foot_kpts" in entry for entry in annotations):
        sections["annotations"] = _join_parts(annotations)
    folder, images = _locate(sections["images"], source)
    own = sections | {"images": images, "categories": _name_keypoints(sections)}
    return ImportedAnnotations(document | own, folder, ())


def _join_parts(annotations: Sequence[Entry]) -> list[Entry]:
    """The annotations of COCO-WholeBody with all 133 keypoints in one list."""
    joined = []
    for entry in annotations:
        values = [value for key in WHOLE_BODY_LISTS for value in entry.get(key) or []]
        own: Entry = {key: entry[key] for key in KEPT if key in entry}
        joined.append(own | {"keypoints": (values + [0] * 399)[:399]})
    return joined


def _name_keypoints(sections: dict[str, list[Entry]]) -> list[Entry]:
    """The categories, with the names of WholeBody or Halpe where one lists none, or only COCO's, for their number of
    keypoints."""
    lengths = {len(entry["keypoints"]) for entry in sections["annotations"] if entry.get("keypoints")}
    names = _LENGTHS.get(lengths.pop() // 3) if len(lengths) == 1 else None
    return [
        category | shape_of(names) if names and tuple(category.get("keypoints") or ()) in ((), BODY) else category
        for category in sections["categories"]
    ]


def import_posetrack(source: Source) -> ImportedAnnotations:
    """Read a folder with a file for each video as one set. Ids that two files have are numbered anew."""
    joined: dict[str, list[Entry]] = {"images": [], "annotations": [], "categories": []}
    for document in source.content.values():
        own = select_sections(document, source.path, ["images"])
        if joined["categories"] and own["categories"] != joined["categories"]:
            raise DataError(f"the files of {source.path} have different categories; import each of them alone")
        joined["categories"] = own["categories"]
        first = len(joined["images"]) + 1
        numbers = {image.get("id"): number for number, image in enumerate(own["images"], first)}
        joined["images"] += [image | {"id": numbers[image.get("id")]} for image in own["images"]]
        joined["annotations"] += [
            entry | {"image_id": numbers.get(entry.get("image_id")), "id": number}
            for number, entry in enumerate(own["annotations"], len(joined["annotations"]) + 1)
        ]
    return import_coco(replace(source, content=joined))


def _locate(listed: list[Entry], source: Source) -> tuple[Path, list[Entry]]:
    """The folder of the images, and their entries with names relative to it.

    Names stay as they are where they are right below some folder; else they are found by the ends of their paths.
    """
    names = [image["file_name"] for image in listed if isinstance(image.get("file_name"), str)]
    files, found = find_images_near(source.path, source.images, names)
    bases = set()
    for name, file in found.items():
        parts = PurePosixPath(name).parts
        bases.add(Path(*file.parts[: -len(parts)]) if file.parts[-len(parts) :] == parts else None)
    base = bases.pop()
    if base is not None and not bases:
        return base, listed
    renamed: dict[Any, str] = {name: file.relative_to(files.folder).as_posix() for name, file in found.items()}
    return files.folder, [
        image | {"file_name": renamed[name]} if (name := str(image.get("file_name"))) in renamed else image
        for image in listed
    ]
