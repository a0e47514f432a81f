"""Writes COCO keypoint data sets as other tools export them.

YOLO-pose follows the description by Ultralytics. The exports of CVAT ("COCO Keypoints 1.0") and of Label Studio (COCO,
and JSON), and the files of Labelme, MPII, CrowdPose and Leeds Sports Pose Extended, have the fields, the numbering, the
omissions and the paths of the real ones.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import scipy.io

from posenet.annotations.coco import COCO_CATEGORY, AnnotationFile
from posenet.annotations.reader import read_annotation_file
from posenet.images import read_image, write_image

if TYPE_CHECKING:
    from posenet.annotations.importing.imported import ImportedAnnotations

Document = dict[str, Any]
Points = dict[str, tuple[float, float, int]]
"""x, y and visibility by name."""

MPII_NAMES = (
    "right_ankle right_knee right_hip left_hip left_knee left_ankle pelvis thorax upper_neck head_top right_wrist "
    "right_elbow right_shoulder left_shoulder left_elbow left_wrist"
).split()
CROWD_POSE_NAMES = (
    "left_shoulder right_shoulder left_elbow right_elbow left_wrist right_wrist left_hip right_hip left_knee "
    "right_knee left_ankle right_ankle head neck"
).split()
LSP_NAMES = (
    "right_ankle right_knee right_hip left_hip left_knee left_ankle right_wrist right_elbow right_shoulder "
    "left_shoulder left_elbow left_wrist neck head_top"
).split()
AIC_NAMES = (
    "right_shoulder right_elbow right_wrist left_shoulder left_elbow left_wrist right_hip right_knee right_ankle "
    "left_hip left_knee left_ankle head_top neck"
).split()


def read_document(path: Path) -> Document:
    content: Document = json.loads(path.read_text())
    return content


def _write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def annotations_of(image: Document, content: Document) -> list[Document]:
    return [entry for entry in content["annotations"] if entry["image_id"] == image["id"] and not entry["iscrowd"]]


def _people_of(image: Document, content: Document) -> list[tuple[Document, Points]]:
    """The annotations of an image with their keypoints by name."""
    names = content["categories"][0]["keypoints"]
    return [
        (entry, dict(zip(names, zip(*(entry["keypoints"][start::3] for start in range(3))))))
        for entry in annotations_of(image, content)
    ]


def _in_order(points: Points, names: Sequence[str], codes: Sequence[int] = (0, 1, 2)) -> list[float]:
    """x, y and the code of the visibility of the keypoints with these names, in a row."""
    rows = [points.get(name, (0, 0, 0)) for name in names]
    return [value for x, y, visibility in rows for value in (x, y, codes[int(visibility)])]


def _corners(entry: Document) -> list[float]:
    x, y, width, height = entry["bbox"]
    return [x, y, x + width, y + height]


def write_yolo_pose(root: Path, images: Path, content: Document, dimensions: int = 3, **settings: Any) -> Path:
    """``data.yaml``, images/train and labels/train; returns the first. ``settings`` are more keys of ``data.yaml``."""
    shutil.copytree(images, root / "images" / "train")
    labels = root / "labels" / "train"
    labels.mkdir(parents=True)
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
    shape = [len(content["categories"][0]["keypoints"]), dimensions]
    data = {"path": str(root), "train": "images/train", "kpt_shape": shape} | settings
    lines = [f"{key}: {json.dumps(value)}" for key, value in data.items()]
    (root / "data.yaml").write_text("\n".join([*lines, "names: {0: person}"]))
    return root / "data.yaml"


def write_labelme(root: Path, images: Path, content: Document) -> Path:
    """A JSON beside each image: a rectangle for each person, from any corner, and a point for each keypoint."""
    shutil.copytree(images, root)
    for image in content["images"]:
        shapes = []
        for group, (entry, points) in enumerate(_people_of(image, content), 1):
            left, top, right, bottom = _corners(entry)
            corners = [[right, top], [left, bottom]]
            shapes.append({"label": "person", "points": corners, "group_id": group, "shape_type": "rectangle"})
            for name, (x, y, visibility) in points.items():
                if visibility:
                    shapes.append({"label": name, "points": [[x, y]], "group_id": group, "shape_type": "point"})
        size = {"imageHeight": image["height"], "imageWidth": image["width"]}
        labels = {"version": "5.5.0", "flags": {}, "shapes": shapes, "imagePath": image["file_name"], "imageData": None}
        _write_json((root / image["file_name"]).with_suffix(".json"), labels | size)
    return root


def write_mpii_list(root: Path, images: Path, content: Document, form: str = "joints") -> Path:
    """One of the lists of people that repositories have; joints count from 1. ``form`` is joints or joint_self."""
    shutil.copytree(images, root / "images")
    entries: list[Document] = []
    for image in content["images"]:
        for _, points in _people_of(image, content):
            rows = [points.get(name, (-1, -1, 0)) for name in MPII_NAMES]
            common = {"scale": 1.5, "center": [10.0, 20.0]}
            if form == "joints":
                joints = [[x + 1, y + 1] for x, y, _ in rows]
                labelled = [int(visibility > 0) for _, _, visibility in rows]
                entries.append({"joints_vis": labelled, "joints": joints, "image": image["file_name"], **common})
            else:
                joints = [[x + 1, y + 1, float(v == 2)] if v else [0.0, 0.0, 0.0] for x, y, v in rows]
                entries.append({"dataset": "MPI", "img_paths": image["file_name"], "joint_self": joints, **common})
    return _write_json(root / "train.json", entries)


def write_mpii(root: Path, images: Path, content: Document) -> Path:
    """The file of Matlab, and images/. Joints count from 1; their visibility is text, a number, or missing.

    People without keypoints have only a position and a scale. A last image, which does not exist, is not annotated.
    """
    shutil.copytree(images, root / "images")
    entries = []
    for image in content["images"]:
        people = []
        for entry, points in _people_of(image, content):
            x, y, width, height = entry["bbox"]
            person: Document = {"objpos": {"x": x + width / 2, "y": y + height / 2}, "scale": max(width, height) / 200}
            joints = [
                {"x": px + 1, "y": py + 1, "id": MPII_NAMES.index(name), "is_visible": str(int(visibility == 2))}
                for name, (px, py, visibility) in points.items()
                if visibility and name in MPII_NAMES
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


def write_crowdpose(root: Path, images: Path, content: Document) -> Path:
    """crowdpose_train.json and images/: 14 keypoints, COCO's edges, neither areas nor outlines."""
    shutil.copytree(images, root / "images")
    category = {"supercategory": "person", "id": 1, "name": "person", "keypoints": CROWD_POSE_NAMES}
    edges = COCO_CATEGORY["skeleton"][:12]
    document: Document = {"images": [], "annotations": [], "categories": [category | {"skeleton": edges}]}
    for image in content["images"]:
        document["images"].append(image | {"crowdIndex": 0.5})
        for entry, points in _people_of(image, content):
            keypoints = _in_order(points, CROWD_POSE_NAMES)
            keys = ("image_id", "bbox", "category_id", "id", "iscrowd")
            labels = {"num_keypoints": sum(value > 0 for value in keypoints[2::3]), "keypoints": keypoints}
            document["annotations"].append({key: entry[key] for key in keys} | labels)
    return _write_json(root / "crowdpose_train.json", document)


def write_lsp(root: Path, images: Path, content: Document, count: int = 0) -> Path:
    """joints.mat of Leeds Sports Pose, (3, 14, N), where 1 marks hidden joints, and images/im0001.jpg and so on.

    With ``count``, those of the extended set: (14, 3, count), where 1 marks visible joints; images/ repeats the images,
    ever darker.
    """
    (root / "images").mkdir(parents=True)
    joints = np.zeros((3, len(LSP_NAMES), count or len(content["images"])))
    for number in range(joints.shape[2]):
        image = content["images"][number % len(content["images"])]
        darker = cv2.subtract(read_image(images / image["file_name"]), (number, number, number, 0))
        digits = 5 if count else 4
        write_image(root / "images" / f"im{number + 1:0{digits}d}.jpg", darker)
        people = _people_of(image, content)
        _, known = max(people, key=lambda person: person[0]["num_keypoints"]) if count else people[0]
        for row, name in enumerate(LSP_NAMES):
            x, y, visibility = known.get(name, (5, 5, 0 if count else 1))
            # The positions of invisible keypoints have no meaning.
            place = (x, y, visibility > 0) if count else (x + 1, y + 1, visibility < 2)
            joints[:, row, number] = place if visibility or not count else (-1, -1, 0)
    scipy.io.savemat(root / "joints.mat", {"joints": joints.transpose(1, 0, 2) if count else joints})
    return root / "joints.mat"


def write_aic(root: Path, images: Path, content: Document) -> Path:
    """keypoint_annotations.json of AI Challenger: boxes are corners, and 3 is a joint that is not labelled."""
    shutil.copytree(images, root / "keypoint_images")
    entries = []
    for image in content["images"]:
        people = {f"human{number}": person for number, person in enumerate(_people_of(image, content), 1)}
        boxes = {key: _corners(entry) for key, (entry, _) in people.items()}
        keypoints = {key: _in_order(points, AIC_NAMES, (3, 2, 1)) for key, (_, points) in people.items()}
        name = Path(image["file_name"]).stem
        labels = {"image_id": name, "keypoint_annotations": keypoints, "human_annotations": boxes}
        entries.append({"url": f"http://example.org/{name}.jpg", **labels})
    return _write_json(root / "keypoint_annotations.json", entries)


def write_deeplabcut(root: Path, images: Path, content: Document, individuals: bool = False) -> Path:
    """A project: config.yaml, and labeled-data/video with images and CollectedData_Ann.csv.

    Without individuals, a table has one animal for each image: the first one.
    """
    folder = root / "labeled-data" / "video"
    shutil.copytree(images, folder)
    names = content["categories"][0]["keypoints"]
    most = max(len(annotations_of(image, content)) for image in content["images"]) if individuals else 1
    columns = [(f"mouse{one}", name, axis) for one in range(most) for name in names for axis in "xy"]
    lines = [["scorer"] + ["Ann"] * len(columns)]
    lines += [["individuals"] + [column[0] for column in columns]] if individuals else []
    lines += [["bodyparts"] + [column[1] for column in columns], ["coords"] + [column[2] for column in columns]]
    for image in content["images"]:
        people = [points for _, points in _people_of(image, content)][:most]
        cells = [f"labeled-data/video/{image['file_name']}"]
        for points in people + [{}] * (most - len(people)):
            for x, y, visibility in (points.get(name, (0, 0, 0)) for name in names):
                cells += [repr(x), repr(y)] if visibility else ["", ""]
        lines.append(cells)
    (folder / "CollectedData_Ann.csv").write_text("\n".join(map(",".join, lines)) + "\n")
    (root / "config.yaml").write_text("Task: openfield\nscorer: Ann\nbodyparts:\n- nose\n")
    return root


def write_cvat_xml(root: Path, images: Path, content: Document, kind: str = "skeleton") -> Path:
    """annotations.xml and images/ of "CVAT for images 1.1".

    ``kind``: skeleton has a box of the same group; points are single ones with a group.
    """
    [category] = content["categories"]
    (root / "images").mkdir(parents=True)
    drawing = "".join(
        f'<line x1="1" data-type="edge" data-node-from="{a}" data-node-to="{b}"></line>'
        for a, b in category["skeleton"]
    )
    drawing += "".join(
        f'<circle r="1" data-type="element node" data-node-id="{number}" data-label-name="{name}"></circle>'
        for number, name in enumerate(category["keypoints"], 1)
    )
    drawing = drawing.replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    labels = f"<label><name>person</name><type>skeleton</type><svg>{drawing}</svg></label>"
    labels += "".join(f"<label><name>{name}</name><parent>person</parent></label>" for name in category["keypoints"])
    lines = [f"<version>1.1</version><meta><task><labels>{labels}</labels></task></meta>"]
    for number, image in enumerate(content["images"]):
        name = image["file_name"]
        shutil.copy(images / image["file_name"], root / "images" / name)
        shapes = ""
        for group, (entry, people) in enumerate(_people_of(image, content), 1):
            points = ""
            for label, (x, y, visibility) in people.items():
                mark = f'occluded="{int(visibility == 1)}" outside="{int(visibility == 0)}"'
                mark += f' group_id="{group}"' if kind == "points" else ""
                if visibility or kind != "points":
                    points += f'<points label="{label}" {mark} points="{x!r},{y!r}"/>'
            if kind == "skeleton":
                points = f'<skeleton label="person" group_id="{group}">{points}</skeleton>'
            corners = dict(zip(("xtl", "ytl", "xbr", "ybr"), _corners(entry)))
            box = " ".join(f'{key}="{value!r}"' for key, value in corners.items())
            shapes += f'{points}<box label="person" occluded="0" {box} group_id="{group}"/>'
        size = f'width="{image["width"]}" height="{image["height"]}"'
        lines.append(f'<image id="{number}" name="{name}" {size}>{shapes}</image>')
    path = root / "annotations.xml"
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>{"".join(lines)}</annotations>\n')
    return path


def write_label_studio_json(root: Path, images: Path, content: Document, parents: bool = True) -> Path:
    """The JSON export of Label Studio: a list of tasks; the images are copied without the prefix of the upload."""
    shutil.copytree(images, root / "images")
    tasks = []
    for number, image in enumerate(content["images"], 1):
        size = {"original_width": image["width"], "original_height": image["height"], "image_rotation": 0}
        regions = []
        for entry, points in _people_of(image, content):
            x, y, width, height = to_percent(entry["bbox"], image)
            region_id = f"r{entry['id']}"
            value = {"x": x, "y": y, "width": width, "height": height, "rotation": 0, "rectanglelabels": ["person"]}
            regions.append({"id": region_id, "type": "rectanglelabels", "value": value, **size})
            for index, (name, (*place, visibility)) in enumerate(points.items()):
                if visibility:
                    x, y = to_percent(place, image)
                    value = {"x": x, "y": y, "width": 0.5, "keypointlabels": [name]}
                    point = {"id": f"{region_id}k{index}", "type": "keypointlabels", "value": value, **size}
                    regions.append(point | ({"parentID": region_id} if parents else {}))
        annotation = {"id": number, "completed_by": 1, "result": regions, "was_cancelled": False}
        data = {"image": f"/data/upload/1/{number:08x}-{image['file_name']}"}
        tasks.append({"id": number, "annotations": [annotation], "data": data, "predictions": []})
    return _write_json(root / "project-1.json", tasks)


def to_percent(values: Sequence[float], image: Document) -> list[float]:
    """x, y, x, y ... in pixels as percentages of the image."""
    sides = (image["width"], image["height"])
    return [100 * value / sides[index % 2] for index, value in enumerate(values)]


def imported(content: Document, **category: Any) -> Document:
    """What a transcription has of people without outlines, with the keys that their category gets besides."""
    entries = []
    for number, entry in enumerate(content["annotations"], 1):
        values = {key: [round(value, 3) for value in entry[key]] for key in ("keypoints", "bbox")}
        entries.append({"id": number, "image_id": entry["image_id"], "category_id": 1, **values, "segmentation": []})
    coco = {key: COCO_CATEGORY[key] for key in ("id", "name", "keypoints", "skeleton")}
    return {"images": content["images"], "annotations": entries, "categories": [coco | category]}


def normal_file(transcribed: "ImportedAnnotations") -> AnnotationFile:
    """What the reader makes of it."""
    return read_annotation_file("a", folder=transcribed.folder, document=transcribed.document)
