"""Writes COCO keypoint data sets as other tools export them.

YOLO-pose follows the description by Ultralytics. The exports of CVAT ("COCO Keypoints 1.0") and of Label Studio (COCO,
and JSON), and the files of Labelme, MPII, CrowdPose and Leeds Sports Pose Extended, have the fields, the numbering, the
omissions and the paths of the real ones.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import scipy.io

from posenet.annotations.coco import COCO_CATEGORY
from posenet.images import read_image, write_image

Document = dict[str, Any]


def read_document(path: Path) -> Document:
    content: Document = json.loads(path.read_text())
    return content


def write_yolo_pose(root: Path, images: Path, content: Document, dimensions: int = 3, **settings: Any) -> Path:
    """``data.yaml``, images/train and labels/train; returns the first. ``settings`` are more keys of ``data.yaml``."""
    shutil.copytree(images, root / "images" / "train")
    labels = root / "labels" / "train"
    labels.mkdir(parents=True)
    names = content["categories"][0]["keypoints"]
    for image in content["images"]:
        size = np.array([image["width"], image["height"]])
        lines = []
        for entry in annotations_of(image, content):
            box = np.array(entry["bbox"], float)
            points = np.reshape(entry["keypoints"], (-1, 3)).astype(float)
            points[:, :2] /= size
            columns = [*((box[:2] + box[2:] / 2) / size), *(box[2:] / size), *points[:, :dimensions].ravel()]
            lines.append(" ".join(["0", *(f"{value:.9f}" for value in columns)]))
        if lines:
            (labels / image["file_name"]).with_suffix(".txt").write_text("\n".join(lines) + "\n")
    data = {"path": str(root), "train": "images/train", "kpt_shape": [len(names), dimensions]}
    lines = [f"{key}: {json.dumps(value)}" for key, value in (data | settings).items()]
    (root / "data.yaml").write_text("\n".join([*lines, "names: {0: person}"]))
    return root / "data.yaml"


def write_cvat(root: Path, images: Path, content: Document) -> Path:
    """The archive of "COCO Keypoints 1.0", unpacked: images/default and annotations/person_keypoints_default.json.

    Ids begin at 1, boxes are those around the points, areas are those of the boxes, labels without points have
    categories too, and file names are relative to the folder of the images.
    """
    shutil.copytree(images, root / "images" / "default")
    category = content["categories"][0]
    exported: Document = {
        "licenses": [{"name": "", "id": 0, "url": ""}],
        "info": {"contributor": "", "date_created": "", "description": "", "url": "", "version": "", "year": ""},
        "categories": [
            {"id": 1, "name": "car", "supercategory": "", "keypoints": [], "skeleton": []},
            {"id": 2, "name": "person", "supercategory": ""}
            | {key: category[key] for key in ("keypoints", "skeleton")},
        ],
        "images": [],
        "annotations": [],
    }
    for number, image in enumerate(content["images"], 1):
        fields = {"license": 0, "flickr_url": "", "coco_url": "", "date_captured": 0}
        size = {key: image[key] for key in ("width", "height")}
        exported["images"].append({"id": number, **size, "file_name": image["file_name"], **fields})
        for entry in annotations_of(image, content):
            points = np.reshape(entry["keypoints"], (-1, 3)).astype(float)
            labelled = points[points[:, 2] > 0, :2]
            if not len(labelled):
                continue
            low, high = labelled.min(0), labelled.max(0)
            exported["annotations"].append(
                {
                    "id": len(exported["annotations"]) + 1,
                    "image_id": number,
                    "category_id": 2,
                    "segmentation": [],
                    "area": float(np.prod(high - low)),
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "iscrowd": 0,
                    "attributes": {"occluded": False, "keyframe": False},
                    "keypoints": points.ravel().tolist(),
                    "num_keypoints": len(labelled),
                }
            )
    (root / "annotations").mkdir()
    path = root / "annotations" / "person_keypoints_default.json"
    path.write_text(json.dumps(exported))
    return path


def write_labelme(root: Path, images: Path, content: Document) -> Path:
    """A JSON beside each image: a rectangle for each person, from any corner, and a point for each keypoint."""
    shutil.copytree(images, root)
    for image in content["images"]:
        shapes = []
        for group, entry in enumerate(annotations_of(image, content), 1):
            x, y, width, height = entry["bbox"]
            corners = [[x + width, y], [x, y + height]]
            shapes.append({"label": "person", "points": corners, "group_id": group, "shape_type": "rectangle"})
            for name, (px, py, visibility) in _named_points(entry, content).items():
                if visibility:
                    shapes.append({"label": name, "points": [[px, py]], "group_id": group, "shape_type": "point"})
        size = {"imageHeight": image["height"], "imageWidth": image["width"]}
        labels = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": image["file_name"], "imageData": None}
        (root / image["file_name"]).with_suffix(".json").write_text(json.dumps(labels | size))
    return root


MPII_NAMES = (
    "right_ankle right_knee right_hip left_hip left_knee left_ankle pelvis thorax neck head_top right_wrist "
    "right_elbow right_shoulder left_shoulder left_elbow left_wrist"
).split()


def write_mpii(root: Path, images: Path, content: Document) -> Path:
    """The file of Matlab, and images/. Joints count from 1; their visibility is text, a number, or missing.

    People without keypoints have only a position and a scale. A last image, which does not exist, is not annotated.
    """
    shutil.copytree(images, root / "images")
    entries = []
    for image in content["images"]:
        people = []
        for entry in annotations_of(image, content):
            x, y, width, height = entry["bbox"]
            person: Document = {"objpos": {"x": x + width / 2, "y": y + height / 2}, "scale": max(width, height) / 200}
            known = {name: point for name, point in _named_points(entry, content).items() if name in MPII_NAMES}
            joints = [
                {"x": px + 1, "y": py + 1, "id": MPII_NAMES.index(name), "is_visible": str(int(visibility == 2))}
                for name, (px, py, visibility) in known.items()
                if visibility
            ]
            people.append(person | {"annopoints": {"point": _struct_array(joints)} if joints else np.zeros((0, 0))})
        entries.append({"image": {"name": image["file_name"]}, "annorect": _struct_array(people)})
    entries.append({"image": {"name": "test.jpg"}, "annorect": {"objpos": {"x": 1, "y": 1}, "scale": 1.0}})
    is_train = np.array([1] * len(content["images"]) + [0])
    path = root / "mpii_human_pose_v1_u12_1.mat"
    scipy.io.savemat(path, {"RELEASE": {"annolist": _struct_array(entries), "img_train": is_train}})
    return path


def _struct_array(entries: list[Document]) -> np.ndarray:
    """An array of structures of Matlab; one that is alone is read as a structure."""
    if not entries:
        return np.zeros((0, 0))
    array = np.empty(len(entries), [(key, object) for key in entries[0]])
    for index, entry in enumerate(entries):
        array[index] = tuple(entry.values())
    return array


CROWD_POSE_NAMES = (
    "left_shoulder right_shoulder left_elbow right_elbow left_wrist right_wrist left_hip right_hip left_knee "
    "right_knee left_ankle right_ankle head neck"
).split()


def write_crowdpose(root: Path, images: Path, content: Document) -> Path:
    """crowdpose_train.json and images/: 14 keypoints, edges that count from 0, neither areas nor outlines."""
    shutil.copytree(images, root / "images")
    edges = [[12, 13], [13, 0], [13, 1], [0, 2], [2, 4], [1, 3], [3, 5], [13, 7], [13, 6], [7, 9], [9, 11], [6, 8]]
    category = {"supercategory": "person", "id": 1, "name": "person", "keypoints": CROWD_POSE_NAMES}
    document: Document = {"images": [], "annotations": [], "categories": [category | {"skeleton": [*edges, [8, 10]]}]}
    for image in content["images"]:
        document["images"].append(image | {"crowdIndex": 0.5})
        for entry in annotations_of(image, content):
            points = _named_points(entry, content)
            keypoints = [value for name in CROWD_POSE_NAMES for value in points.get(name, (0, 0, 0))]
            keys = ("image_id", "bbox", "category_id", "id", "iscrowd")
            labels = {"num_keypoints": sum(value > 0 for value in keypoints[2::3]), "keypoints": keypoints}
            document["annotations"].append({key: entry[key] for key in keys} | labels)
    path = root / "crowdpose_train.json"
    path.write_text(json.dumps(document))
    return path


def write_lsp_extended(root: Path, images: Path, content: Document, count: int) -> Path:
    """joints.mat of Leeds Sports Pose Extended, (14, 3, count), and images/, which repeats the images, ever darker.

    The positions of invisible keypoints have no meaning. The drawn people have no neck and no top of the head.
    """
    (root / "images").mkdir(parents=True)
    joints = np.full((len(LSP_NAMES), 3, count), -1.0)
    joints[:, 2] = 0
    for number in range(count):
        image = content["images"][number % len(content["images"])]
        pixels = cv2.subtract(read_image(images / image["file_name"]), (number, number, number, 0))
        write_image(root / "images" / f"im{number + 1:05d}.jpg", pixels)
        person = max(annotations_of(image, content), key=lambda entry: entry["num_keypoints"])
        known = _named_points(person, content)
        for row, name in enumerate(LSP_NAMES):
            x, y, visibility = known.get(name, (-1, -1, 0))
            if visibility:
                joints[row, :, number] = x, y, 1
    scipy.io.savemat(root / "joints.mat", {"joints": joints})
    return root / "joints.mat"


LSP_NAMES = (
    "right_ankle right_knee right_hip left_hip left_knee left_ankle right_wrist right_elbow right_shoulder "
    "left_shoulder left_elbow left_wrist neck head_top"
).split()


def _named_points(entry: Document, content: Document) -> dict[str, tuple[float, float, int]]:
    """x, y and visibility of the keypoints of an annotation by name."""
    names = content["categories"][0]["keypoints"]
    return dict(zip(names, zip(*(entry["keypoints"][start::3] for start in range(3)))))


def write_label_studio_coco(root: Path, images: Path, content: Document, prefix: str = "images/") -> Path:
    """The COCO export of Label Studio: result.json and images/.

    Ids begin at 0, coordinates are rounded, and there is neither area nor segmentation. All keypoints of an image are
    in one annotation; rectangles are annotations of a category of their own.
    """
    shutil.copytree(images, root / "images")
    names = content["categories"][0]["keypoints"]
    exported: Document = {
        "images": [],
        "categories": [
            {"id": 0, "name": "body"},
            {"id": 1, "name": "default", "supercategory": "default", "keypoints": names, "skeleton": []},
        ],
        "annotations": [],
        "info": {"year": 2026, "version": "1.0", "description": "", "contributor": "Label Studio", "url": ""},
    }
    for number, image in enumerate(content["images"]):
        size = {key: image[key] for key in ("width", "height")}
        exported["images"].append({**size, "id": number, "file_name": prefix + image["file_name"]})
        merged = [0] * 3 * len(names)
        for entry in annotations_of(image, content):
            box = entry["bbox"]
            rectangle = {"segmentation": [], "bbox": box, "ignore": 0, "iscrowd": 0, "area": box[2] * box[3]}
            annotation_id = len(exported["annotations"])
            exported["annotations"].append({"id": annotation_id, "image_id": number, "category_id": 0, **rectangle})
            for index in range(0, len(merged), 3):
                if entry["keypoints"][index + 2]:
                    x, y = entry["keypoints"][index : index + 2]
                    merged[index : index + 3] = [round(x), round(y), 2]
        points = np.reshape(merged, (-1, 3))
        labelled = points[points[:, 2] > 0, :2]
        if len(labelled):
            low, high = labelled.min(0), labelled.max(0)
            exported["annotations"].append(
                {
                    "id": len(exported["annotations"]),
                    "image_id": number,
                    "category_id": 1,
                    "keypoints": merged,
                    "num_keypoints": len(labelled),
                    "bbox": [*low.tolist(), *(high - low).tolist()],
                    "iscrowd": 0,
                }
            )
    path = root / "result.json"
    path.write_text(json.dumps(exported, indent=2))
    return path


def write_label_studio_json(root: Path, images: Path, content: Document, parents: bool = True) -> Path:
    """The JSON export of Label Studio: a list of tasks; the images are copied without the prefix of the upload."""
    shutil.copytree(images, root / "images")
    names = content["categories"][0]["keypoints"]
    tasks = []
    for number, image in enumerate(content["images"], 1):
        size = {"original_width": image["width"], "original_height": image["height"], "image_rotation": 0}
        regions = []
        for entry in annotations_of(image, content):
            x, y, width, height = to_percent(entry["bbox"], image)
            region_id = f"r{entry['id']}"
            value = {"x": x, "y": y, "width": width, "height": height, "rotation": 0, "rectanglelabels": ["person"]}
            regions.append({"id": region_id, "type": "rectanglelabels", "value": value, **size})
            for index, name in enumerate(names):
                point_x, point_y, visibility = entry["keypoints"][3 * index : 3 * index + 3]
                if visibility:
                    x, y = to_percent([point_x, point_y], image)
                    value = {"x": x, "y": y, "width": 0.5, "keypointlabels": [name]}
                    point = {"id": f"{region_id}k{index}", "type": "keypointlabels", "value": value, **size}
                    regions.append(point | ({"parentID": region_id} if parents else {}))
        annotation = {"id": number, "completed_by": 1, "result": regions, "was_cancelled": False}
        data = {"image": f"/data/upload/1/{number:08x}-{image['file_name']}"}
        tasks.append({"id": number, "annotations": [annotation], "data": data, "predictions": []})
    path = root / "project-1.json"
    path.write_text(json.dumps(tasks))
    return path


def imported(content: Document, **category: Any) -> Document:
    """What an import makes of people without outlines, with the keys that their category gets besides."""

    def rounded(values: list[float]) -> list[float]:
        return [round(value, 3) for value in values]

    entries = [
        {
            "id": number,
            "image_id": entry["image_id"],
            "category_id": 1,
            "keypoints": rounded(entry["keypoints"]),
            "num_keypoints": entry["num_keypoints"],
            "bbox": rounded(entry["bbox"]),
            "area": round(0.53 * entry["bbox"][2] * entry["bbox"][3], 3),
            "iscrowd": 0,
            "segmentation": [],
        }
        for number, entry in enumerate(content["annotations"], 1)
    ]
    coco = {key: COCO_CATEGORY[key] for key in ("id", "name", "keypoints", "skeleton")}
    return {"images": content["images"], "annotations": entries, "categories": [coco | category]}


def to_percent(values: list[float], image: Document) -> list[float]:
    """x, y, x, y ... in pixels as percentages of the image."""
    sides = (image["width"], image["height"])
    return [100 * value / sides[index % 2] for index, value in enumerate(values)]


def annotations_of(image: Document, content: Document) -> list[Document]:
    return [entry for entry in content["annotations"] if entry["image_id"] == image["id"] and not entry["iscrowd"]]
