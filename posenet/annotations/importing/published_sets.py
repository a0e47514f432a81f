"""Published data sets of people in files of their own form: AI Challenger, MPII, Leeds Sports Pose and OCHuman.

The files of MPII and of Leeds Sports Pose come from Matlab, where the centre of the first pixel is (1, 1): 1 is taken
from their coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posenet.annotations.importing.image_files import ImageFiles
from posenet.annotations.importing.imported import (
    ImportedAnnotations,
    ImportedPerson,
    Labels,
    Notes,
    flip_idx_of,
    readable,
    to_coco,
)

AIC_NAMES = (
    "right_shoulder right_elbow right_wrist left_shoulder left_elbow left_wrist right_hip right_knee right_ankle "
    "left_hip left_knee left_ankle head_top neck"
).split()
MPII_NAMES = (
    "right_ankle right_knee right_hip left_hip left_knee left_ankle pelvis thorax upper_neck head_top right_wrist "
    "right_elbow right_shoulder left_shoulder left_elbow left_wrist"
).split()
LSP_NAMES = (
    "right_ankle right_knee right_hip left_hip left_knee left_ankle right_wrist right_elbow right_shoulder "
    "left_shoulder left_elbow left_wrist neck head_top"
).split()
LIMBS = (
    "ankle-knee knee-hip wrist-elbow elbow-shoulder shoulder-neck shoulder-upper_neck hip-pelvis pelvis-thorax "
    "thorax-upper_neck upper_neck-head_top neck-head_top shoulder-hip neck-head nose-eye eye-ear"
).split()
"""Edges of a body; a name without a side stands for both sides where there are two."""
MISSING_IMAGES = "images that are not in the folder, left out"
_NO_KEYPOINTS = "people without keypoints, kept as places that training ignores"

People = dict[str, list[ImportedPerson]]
"""The people of every image, by its name in the file."""


def labels_of(names: Sequence[str]) -> Labels:
    """People with these keypoints, their edges and their twins."""
    edges = []
    for limb in LIMBS:
        a, b = limb.split("-")
        for side in ("", "left_", "right_"):
            ends = [f"{side}{end}" if f"{side}{end}" in names else end for end in (a, b)]
            edge = [names.index(end) + 1 for end in ends if end in names]
            if len(edge) == 2 and edge not in edges:
                edges.append(edge)
    pairs = [(name, f"right{name[4:]}") for name in names if name.startswith("left_")]
    return Labels({1: "person"}, names, edges, flip_idx_of(names, pairs))


def _convert(
    people: People, names: Sequence[str], path: Path, images: str | Path | None, notes: Notes
) -> ImportedAnnotations:
    """Convert the people of the images that are there."""
    files, missing = ImageFiles.near(path, images).require(list(people), path)
    if missing:
        notes[MISSING_IMAGES] += missing
    people_of: dict[Path, list[ImportedPerson]] = {}
    for name, file in files.items():
        people_of.setdefault(file, []).extend(people[name])
        notes[_NO_KEYPOINTS] += [name for person in people[name] if not person.keypoints[:, 2].any()]
    return to_coco(list(people_of), lambda file: (people_of[file], ""), labels_of(names), notes)


def import_aic(entries: Sequence[Mapping[str, Any]], path: Path, images: str | Path | None) -> ImportedAnnotations:
    """Read a file of AI Challenger: 14 keypoints; 1 is visible there, 2 hidden, 3 not labelled."""
    people: People = {}
    with readable(path):
        for entry in entries:
            boxes = entry.get("human_annotations") or {}
            own = people.setdefault(f"{entry['image_id']}.jpg", [])
            for key, values in entry["keypoint_annotations"].items():
                keypoints = _rows(values, len(AIC_NAMES))
                keypoints[:, 2] = np.select([keypoints[:, 2] == 1, keypoints[:, 2] == 2], [2, 1], 0)
                own.append(ImportedPerson(1, keypoints, _from_corners(boxes.get(key))))
    return _convert(people, AIC_NAMES, path, images, Notes(list))


def import_mpii_list(
    entries: Sequence[Mapping[str, Any]], path: Path, images: str | Path | None
) -> ImportedAnnotations:
    """Read MPII as a list of people, in either form that is common; both count from 1, as Matlab does.

    One has ``joints`` and ``joints_vis``, which is 1 for joints that are labelled. The other has ``joint_self``, whose
    third value is 1 for visible joints; joints that are not labelled are at (0, 0). People without joints: see
    ``import_mpii_release``.
    """
    people: People = {}
    with readable(path):
        for entry in entries:
            if "joint_self" in entry:
                keypoints = _rows(entry["joint_self"], len(MPII_NAMES))
                is_labelled = (keypoints[:, :2] > 0).all(axis=1)
                keypoints[:, 2] = np.where(is_labelled, np.where(keypoints[:, 2] > 0, 2, 1), 0)
                name = entry["img_paths"]
                place, scale = entry.get("objpos"), entry.get("scale_provided")
            else:
                points = np.array(entry["joints"], np.float64).reshape(len(MPII_NAMES), 2)
                labelled = np.array(entry["joints_vis"], np.float64).reshape(len(MPII_NAMES), 1) > 0
                keypoints = np.hstack([points, 2.0 * labelled])
                name = entry["image"]
                place, scale = entry.get("center"), entry.get("scale")
            keypoints[:, :2] -= 1
            own = people.setdefault(str(name), [])
            if keypoints[:, 2].any():
                own.append(ImportedPerson(1, keypoints, None))
            elif place is not None and scale is not None:
                own.append(ImportedPerson(1, keypoints, _box_of_scale(place, scale)))
    return _convert(people, MPII_NAMES, path, images, Notes(list))


def import_mpii_release(content: Mapping[str, Any], path: Path, images: str | Path | None) -> ImportedAnnotations:
    """Read ``mpii_human_pose_v1_u12_1.mat``. Its test images have no keypoints, and are left out.

    A joint is visible unless ``is_visible`` is 0. People without joints have a position and a height, 200 times
    ``scale``, which become a box.
    """
    people: People = {}
    with readable(path):
        release = content["RELEASE"]
        for entry, is_train in zip(_as_list(release["annolist"]), np.ravel(release["img_train"])):
            if not is_train:
                continue
            own = people.setdefault(str(entry["image"]["name"]), [])
            for person in _as_list(entry.get("annorect")):
                keypoints = np.zeros((len(MPII_NAMES), 3))
                points = person.get("annopoints")
                for point in _as_list(points.get("point")) if isinstance(points, dict) else []:
                    visibility = 1 if str(point.get("is_visible")) == "0" else 2
                    keypoints[int(point["id"])] = point["x"] - 1, point["y"] - 1, visibility
                box = None
                if not keypoints.any():
                    if not isinstance(person.get("objpos"), dict):
                        continue
                    box = _box_of_scale([person["objpos"][axis] for axis in "xy"], person["scale"])
                own.append(ImportedPerson(1, keypoints, box))
    return _convert(people, MPII_NAMES, path, images, Notes(list))


def import_lsp(content: Mapping[str, Any], path: Path, images: str | Path | None) -> ImportedAnnotations:
    """Read ``joints.mat`` of Leeds Sports Pose, whose images are im0001.jpg and so on.

    The array is (3, 14, N), and 1 marks hidden joints. In Leeds Sports Pose Extended it is (14, 3, N), 1 marks visible
    joints, and the positions of others have no meaning.
    """
    with readable(path):
        joints = np.array(content["joints"], np.float64)
        joints = joints[..., None] if joints.ndim == 2 else joints
        is_extended = joints.shape[:2] == (len(LSP_NAMES), 3)
        if not is_extended and joints.shape[:2] != (3, len(LSP_NAMES)):
            raise ValueError(f"joints is an array of {joints.shape}, not (3, 14, N) or (14, 3, N)")
        joints = joints.transpose(2, 0, 1) if is_extended else joints.transpose(2, 1, 0)
        flag = joints[..., 2] > 0
        joints[..., 2] = np.where(flag, 2, 0) if is_extended else np.where(flag, 1, 2)
        joints[..., :2] -= 1
    digits = 5 if is_extended else 4
    people = {f"im{number:0{digits}d}.jpg": [ImportedPerson(1, own, None)] for number, own in enumerate(joints, 1)}
    return _convert(people, LSP_NAMES, path, images, Notes(list))


def import_ochuman(document: Mapping[str, Any], path: Path, images: str | Path | None) -> ImportedAnnotations:
    """Read ``ochuman.json``: 19 keypoints, of which 1 is visible, 2 and 3 hidden by oneself or by others."""
    people: People = {}
    with readable(path):
        names = [str(name) for name in document["keypoint_names"]]
        for entry in document["images"]:
            own = people.setdefault(str(entry["file_name"]), [])
            for person in entry["annotations"]:
                keypoints = np.zeros((len(names), 3))
                if person.get("keypoints"):
                    keypoints = _rows(person["keypoints"], len(names))
                    keypoints[:, 2] = np.select([keypoints[:, 2] == 1, keypoints[:, 2] > 1], [2, 1], 0)
                own.append(ImportedPerson(1, keypoints, _from_corners(person.get("bbox"))))
    return _convert(people, names, path, images, Notes(list))


def _rows(values: Any, count: int) -> np.ndarray:
    """(count, 3) float64 of a list of numbers, nested or not; ``ValueError`` if there are others."""
    rows = np.array(values, np.float64).reshape(-1, 3)
    if len(rows) != count:
        raise ValueError(f"a person has {len(rows)} keypoints, not {count}")
    if not np.isfinite(rows).all():
        raise ValueError("a number is not finite")
    return rows


def _box_of_scale(place: Sequence[Any], scale: Any) -> list[float]:
    """x, y, width, height around a position, counted from 1, with a side of 200 times ``scale`` pixels."""
    side = 200 * float(scale)
    return [float(place[0]) - 1 - side / 2, float(place[1]) - 1 - side / 2, side, side]


def _from_corners(corners: Any) -> list[float] | None:
    """x, y, width, height of a box that is given by two corners; None without one."""
    if corners is None or len(corners) != 4:
        return None
    left, top, right, bottom = map(float, corners)
    return [left, top, right - left, bottom - top]


def _as_list(value: Any) -> list[dict[str, Any]]:
    """Structures of Matlab: one is no list, and none are an empty array."""
    if isinstance(value, dict):
        return [value]
    return [item for item in (value if isinstance(value, (list, np.ndarray)) else []) if isinstance(item, dict)]
