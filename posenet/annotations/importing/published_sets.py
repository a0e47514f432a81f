"""Published data sets of people in files of their own form: AI Challenger, MPII, Leeds Sports Pose, InterHand.

The files of MPII and of Leeds Sports Pose come from Matlab, where the centre of the first pixel is (1, 1): 1 is taken
from their coordinates.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posenet.annotations.coco import read_document
from posenet.annotations.importing.coco_family import FINGERS
from posenet.annotations.importing.imported import ImportedAnnotations, Object, Source, to_coco
from posenet.errors import DataError

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
_JOINTS = [*(f"{finger}{number}" for finger in FINGERS for number in (4, 3, 2, 1)), "hand_root"]
INTERHAND_NAMES = [f"{side}_{joint}" for side in ("right", "left") for joint in _JOINTS]

Person = tuple[str, np.ndarray | None, list[float] | None]
"""The name of the image, keypoints (K, 3) in pixels with COCO's visibility, and the box; without both, nobody."""


def reader_of(
    names: Sequence[str], people_of: Callable[[Source], Iterator[Person]], category: str = "person"
) -> Callable[[Source], ImportedAnnotations]:
    """A reader of files whose content ``people_of`` turns to people with keypoints of these names."""

    def read(source: Source) -> ImportedAnnotations:
        people: dict[str, list[Object]] = {}
        for image, keypoints, box in people_of(source):
            own = people.setdefault(str(image), [])
            if keypoints is None and box is None:
                continue
            rows = np.zeros((len(names), 3)) if keypoints is None else keypoints
            if len(rows) != len(names):
                raise ValueError(f"a person of {image} has {len(rows)} keypoints, not {len(names)}")
            own.append(Object(category, dict(zip(names, rows.tolist())), box))
        return to_coco(people, names, source)

    return read


def _people_of_aic(source: Source) -> Iterator[Person]:
    """A file of AI Challenger: 1 is visible there, 2 hidden, 3 not labelled. Boxes are two corners."""
    for entry in source.content:
        boxes = entry.get("human_annotations") or {}
        name = f"{entry['image_id']}.jpg"
        yield name, None, None
        for key, values in entry["keypoint_annotations"].items():
            keypoints = np.array(values, np.float64).reshape(-1, 3)
            keypoints[:, 2] = [{1: 2, 2: 1}.get(int(value), 0) for value in keypoints[:, 2]]
            box = None
            if len(corners := boxes.get(key) or ()) == 4:
                left, top, right, bottom = map(float, corners)
                box = [left, top, right - left, bottom - top]
            yield name, keypoints, box


def _people_of_mpii(source: Source) -> Iterator[Person]:
    """``mpii_human_pose_v1_u12_1.mat``, or a list of people in either form that is common; all count from 1.

    People without joints have a position and a height, 200 times ``scale``, which become a box.
    """
    read = _mpii_release if source.kind == "mat" else _mpii_list
    for name, keypoints, place, scale in read(source.content):
        keypoints[:, :2] -= 1
        yield name, None, None
        if keypoints[:, 2].any():
            yield name, keypoints, None
        elif place is not None and scale is not None:
            side = 200 * float(scale)
            yield name, None, [float(place[0]) - 1 - side / 2, float(place[1]) - 1 - side / 2, side, side]


def _mpii_list(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, np.ndarray, Any, Any]]:
    """One form has ``joints`` and ``joints_vis``, which is 1 for joints that are labelled. The other has
    ``joint_self``, whose third value is 1 for visible joints; joints that are not labelled are at (0, 0)."""
    for entry in entries:
        if "joint_self" in entry:
            keypoints = np.array(entry["joint_self"], np.float64).reshape(-1, 3)
            is_labelled = (keypoints[:, :2] > 0).all(axis=1)
            keypoints[:, 2] = np.where(is_labelled, np.where(keypoints[:, 2] > 0, 2, 1), 0)
            yield entry["img_paths"], keypoints, entry.get("objpos"), entry.get("scale_provided")
        else:
            labelled = np.array(entry["joints_vis"], np.float64).reshape(-1, 1) > 0
            keypoints = np.hstack([np.array(entry["joints"], np.float64).reshape(-1, 2), 2.0 * labelled])
            yield entry["image"], keypoints, entry.get("center"), entry.get("scale")


def _mpii_release(content: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray, Any, Any]]:
    """A joint is visible unless ``is_visible`` is 0. Test images have no keypoints, and are left out."""
    release = content["RELEASE"]
    for entry, is_train in zip(_as_list(release["annolist"]), np.ravel(release["img_train"])):
        for person in _as_list(entry.get("annorect")) if is_train else []:
            keypoints = np.zeros((len(MPII_NAMES), 3))
            points = person.get("annopoints")
            for point in _as_list(points.get("point")) if isinstance(points, dict) else []:
                visibility = 1 if str(point.get("is_visible")) == "0" else 2
                keypoints[int(point["id"])] = point["x"], point["y"], visibility
            place = person.get("objpos")
            place = [place[axis] for axis in "xy"] if isinstance(place, dict) else None
            yield str(entry["image"]["name"]), keypoints, place, person.get("scale")


def _people_of_lsp(source: Source) -> Iterator[Person]:
    """``joints.mat`` of Leeds Sports Pose, whose images are im0001.jpg and so on.

    The array is (3, 14, N), and 1 marks hidden joints. In Leeds Sports Pose Extended it is (14, 3, N), 1 marks visible
    joints, and the positions of others have no meaning.
    """
    joints = np.array(source.content["joints"], np.float64)
    joints = joints[..., None] if joints.ndim == 2 else joints
    is_extended = joints.shape[:2] == (len(LSP_NAMES), 3)
    if not is_extended and joints.shape[:2] != (3, len(LSP_NAMES)):
        raise ValueError(f"joints is an array of {joints.shape}, not (3, 14, N) or (14, 3, N)")
    joints = joints.transpose(2, 0, 1) if is_extended else joints.transpose(2, 1, 0)
    flag = joints[..., 2] > 0
    joints[..., 2] = np.where(flag, 2, 0) if is_extended else np.where(flag, 1, 2)
    joints[..., :2] -= 1
    for number, keypoints in enumerate(joints, 1):
        yield f"im{number:0{5 if is_extended else 4}d}.jpg", keypoints, None


def _as_list(value: Any) -> list[dict[str, Any]]:
    """Structures of Matlab: one is no list, and none are an empty array."""
    if isinstance(value, dict):
        return [value]
    return [item for item in (value if isinstance(value, (list, np.ndarray)) else []) if isinstance(item, dict)]


def _people_of_interhand(source: Source) -> Iterator[Person]:
    """``InterHand2.6M_*_data.json``: 42 keypoints of two hands, as the cameras see the positions in space of the two
    files beside it."""
    others = []
    for end in ("camera", "joint_3d"):
        path = source.path.with_name(source.path.name.replace("_data", f"_{end}"))
        if not path.is_file():
            raise DataError(f"{source.path} has no positions in its images; put {path.name} beside it")
        others.append(read_document(path))
    images = {image["id"]: image for image in source.content["images"]}
    for entry in source.content["annotations"]:
        image = images[entry["image_id"]]
        capture, camera = str(image["capture"]), str(image["camera"])
        cameras, joints = (other[capture] for other in others)
        points = np.array(joints[str(image["frame_idx"])]["world_coord"], np.float64)
        seen = (points - cameras["campos"][camera]) @ np.transpose(cameras["camrot"][camera])
        pixels = seen[:, :2] / seen[:, 2:] * cameras["focal"][camera] + cameras["princpt"][camera]
        yield image["file_name"], np.column_stack([pixels, 2 * (np.ravel(entry["joint_valid"]) > 0)]), entry.get("bbox")


import_aic = reader_of(AIC_NAMES, _people_of_aic)
import_mpii = reader_of(MPII_NAMES, _people_of_mpii)
import_lsp = reader_of(LSP_NAMES, _people_of_lsp)
import_interhand = reader_of(INTERHAND_NAMES, _people_of_interhand, "hands")
