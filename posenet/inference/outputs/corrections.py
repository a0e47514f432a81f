"""People in the formats of labelling tools, to be corrected there: SLEAP, CVAT, Label Studio.

What is corrected comes back with ``annotations import``, or goes into ``train``. Coordinates are those of the image as
it is displayed; a keypoint that was not found is not labelled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args
from xml.etree import ElementTree

import numpy as np

from posenet.annotations.importing.sleap import require_sleap_io
from posenet.errors import ConfigError, DataError
from posenet.files import atomic_replacement, check_outputs, resolve_link, write_atomically
from posenet.inference.media.sources import Source
from posenet.inference.outputs.people_files import (
    ImageIds,
    Record,
    Write,
    edges_of,
    listed_names,
    record_of,
    write_coco,
)
from posenet.inference.result import Result
from posenet.skeleton import Skeleton

CorrectionFormat = Literal["sleap", "cvat", "label_studio", "coco"]
SUFFIXES: dict[str, CorrectionFormat] = {".slp": "sleap", ".xml": "cvat", ".json": "label_studio"}
"""The format that the suffix of a file chooses."""


class FoundPeople(NamedTuple):
    """The N people of an image or a frame."""

    source: Source
    number: int | None  # of a frame of a video; None for an image
    size: tuple[int, int]  # height, width in pixels
    keypoints: Sequence[np.ndarray]  # N times (F, 3) x, y, score in the order of annotation files; 0 for not found
    scores: Sequence[float]
    ids: Sequence[int | None]  # of tracked people

    @property
    def image_path(self) -> str:
        """The absolute path of the image or the video."""
        if self.source.path is None:
            raise DataError(f"{self.source.name} is no file, which a labelling tool needs; save the image first")
        return str(self.source.path.absolute())


def export_results(results: Iterable[Result], path: str | Path, format: CorrectionFormat | None = None) -> None:
    """Write results to a file in which a labelling tool corrects them; an existing file is replaced.

    Args:
        path: .slp is for SLEAP, .xml for CVAT ("CVAT 1.1"), .json for Label Studio (predictions of tasks).
        format: for another suffix, or "coco" for a COCO data set.

    Raises:
        ConfigError: the suffix and ``format`` do not name a format, or ``sleap-io`` is not installed.
        DataError: there are no results, the images are not files, or the file cannot be written.
    """
    path = Path(path)
    chosen = choose_format(path, format)
    readable = [result for result in results if result.error is None]
    if not readable:
        raise DataError(f"there are no results to write to {path}; give those of images that can be read")
    sources = list(dict.fromkeys(result.frame.source for result in readable))
    check_outputs([path], [source.path for source in sources if source.path is not None], overwrite=True)
    skeleton = readable[0].skeleton
    if chosen == "coco":
        for source in sources:
            if source.path is None:
                raise DataError(f"{source.name} is no file, which a data set needs; save the image first")
        writer = write_coco(path, sources, skeleton)
    else:
        writer = write_corrections(path, skeleton, chosen)
    ids = ImageIds(sources)
    with writer as write:
        for result in readable:
            write(result.frame.source, record_of(result, ids))


def choose_format(path: Path, format: CorrectionFormat | None = None) -> CorrectionFormat:
    """The format of a file; ``ConfigError`` if it is not known, or a package for it is not installed."""
    chosen = format or SUFFIXES.get(path.suffix.lower())
    if chosen is None or chosen not in get_args(CorrectionFormat):
        reason = f"format={format}" if format else f"{path}"
        raise ConfigError(f"{reason} is no format for corrections; end the name with {', '.join(SUFFIXES)}")
    if chosen == "sleap":
        require_sleap_io()
    return chosen


@contextlib.contextmanager
def write_corrections(path: Path, skeleton: Skeleton, format: CorrectionFormat | None = None) -> Iterator[Write]:
    """Collect the people of all images, and write the file at the end, completely or not at all."""
    writers: dict[str, Callable[[Path, Skeleton, Sequence[FoundPeople]], None]] = {
        "sleap": _write_sleap,
        "cvat": _write_cvat,
        "label_studio": _write_label_studio,
    }
    write_file = writers[choose_format(path, format)]
    found: list[FoundPeople] = []

    def write(source: Source, record: Record) -> None:
        rows = [np.reshape(person["keypoints"], (-1, 3)) for person in record["people"]]
        people = [(keypoints, person) for keypoints, person in zip(rows, record["people"]) if keypoints[:, 2].any()]
        keypoints = [rows for rows, _ in people]
        scores = [person["score"] for _, person in people]
        ids = [person.get("id") for _, person in people]
        size = record["height"], record["width"]
        found.append(FoundPeople(source, record.get("frame"), size, keypoints, scores, ids))

    yield write
    write_file(path, skeleton, found)


def _write_label_studio(path: Path, skeleton: Skeleton, found: Sequence[FoundPeople]) -> None:
    """Tasks with predictions: a rectangle for each person, with the keypoints in it. Images alone, no videos."""
    names = listed_names([people.source for people in found])
    tasks = []
    for people in found:
        if people.number is not None:
            raise DataError(
                f"{people.source.name} is a video, of which Label Studio shows no frames; export to .slp or .xml, or "
                "predict its frames as images"
            )
        height, width = people.size
        unit = np.array([width, height]) / 100
        common = {"to_name": "image", "original_width": width, "original_height": height, "image_rotation": 0}
        regions: list[dict[str, Any]] = []
        for number, (keypoints, score) in enumerate(zip(people.keypoints, people.scores), 1):
            is_found = keypoints[:, 2] > 0
            corner = keypoints[is_found, :2].min(axis=0)
            sides = np.maximum(np.ptp(keypoints[is_found, :2], axis=0), 1)
            x, y = (corner / unit).tolist()
            box_width, box_height = (sides / unit).tolist()
            value: dict[str, Any] = {"x": x, "y": y, "width": box_width, "height": box_height, "rotation": 0}
            value["rectanglelabels"] = [skeleton.category]
            rectangle = {"id": f"p{number}", "type": "rectanglelabels", "from_name": "box", "score": score}
            regions.append(rectangle | common | {"value": value})
            for index in np.flatnonzero(is_found).tolist():
                x, y = (keypoints[index, :2] / unit).tolist()
                value = {"x": x, "y": y, "width": 0.5, "keypointlabels": [skeleton.file_names[index]]}
                point = {"id": f"p{number}k{index}", "type": "keypointlabels", "from_name": "keypoints"}
                regions.append(point | common | {"parentID": f"p{number}", "value": value})
        mean = float(np.mean(people.scores)) if people.scores else 0.0
        prediction = {"model_version": "posenet", "score": mean, "result": regions}
        tasks.append({"data": {"image": f"/data/local-files/?d={names[people.source]}"}, "predictions": [prediction]})
    write_atomically(path, json.dumps(tasks).encode())


def _write_cvat(path: Path, skeleton: Skeleton, found: Sequence[FoundPeople]) -> None:
    """Skeletons in "CVAT 1.1": of images, or of the frames of one video, as tracks."""
    videos = {people.source for people in found if people.number is not None}
    if videos and (len(videos) > 1 or any(people.number is None for people in found)):
        raise DataError("a file of CVAT is of images or of one video; export each video to a file of its own")
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    _add_labels(ElementTree.SubElement(root, "meta"), skeleton, videos)
    if videos:
        _add_tracks(root, skeleton, found)
    else:
        names = listed_names([people.source for people in found])
        for number, people in enumerate(found):
            height, width = people.size
            about = {"id": str(number), "name": names[people.source], "width": str(width), "height": str(height)}
            image = ElementTree.SubElement(root, "image", about)
            for keypoints in people.keypoints:
                attributes = {"label": skeleton.category, "source": "auto", "z_order": "0"}
                _add_points(ElementTree.SubElement(image, "skeleton", attributes), skeleton, keypoints)
    ElementTree.indent(root)
    write_atomically(path, ElementTree.tostring(root, "unicode").encode("utf-8", "surrogateescape"))


def _add_labels(meta: ElementTree.Element, skeleton: Skeleton, videos: Iterable[Source]) -> None:
    """The label of a skeleton and those of its points, as a task has them."""
    task = ElementTree.SubElement(meta, "task")
    labels = ElementTree.SubElement(task, "labels")
    label = ElementTree.SubElement(labels, "label")
    ElementTree.SubElement(label, "name").text = skeleton.category
    ElementTree.SubElement(label, "type").text = "skeleton"
    drawing = [
        f'<line data-type="edge" data-node-from="{a}" data-node-to="{b}"></line>' for a, b in edges_of(skeleton)
    ] + [
        f'<circle data-type="element node" data-node-id="{number}" data-label-name="{name}"></circle>'
        for number, name in enumerate(skeleton.file_names, 1)
    ]
    ElementTree.SubElement(label, "svg").text = "".join(drawing)
    for name in skeleton.file_names:
        own = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(own, "name").text = name
        ElementTree.SubElement(own, "type").text = "points"
        ElementTree.SubElement(own, "parent").text = skeleton.category
    for video in videos:
        ElementTree.SubElement(task, "source").text = video.name


def _add_tracks(root: ElementTree.Element, skeleton: Skeleton, found: Sequence[FoundPeople]) -> None:
    """A track for each tracked person, and one of a single frame for each other one; each ends with its last frame."""
    tracks: dict[object, list[tuple[int, np.ndarray]]] = {}
    for people in found:
        for index, (keypoints, person_id) in enumerate(zip(people.keypoints, people.ids)):
            key = (people.number, index) if person_id is None else person_id
            tracks.setdefault(key, []).append((int(people.number or 0), keypoints))
    numbers = [int(people.number or 0) for people in found]
    following = dict(itertools.pairwise(numbers))
    for number, frames in enumerate(tracks.values()):
        track = ElementTree.SubElement(root, "track", {"id": str(number), "label": skeleton.category, "source": "auto"})
        seen = {frame for frame, _ in frames}
        nothing = np.zeros((len(skeleton.file_names), 3))
        ends = [(following[frame], nothing) for frame in seen if following.get(frame, frame) not in seen]
        for frame, keypoints in sorted([*frames, *ends], key=lambda item: item[0]):
            shape = ElementTree.SubElement(track, "skeleton", {"frame": str(frame), "keyframe": "1", "z_order": "0"})
            _add_points(shape, skeleton, keypoints)


def _add_points(shape: ElementTree.Element, skeleton: Skeleton, keypoints: np.ndarray) -> None:
    for name, (x, y, score) in zip(skeleton.file_names, keypoints.tolist()):
        mark = {"outside": str(int(score <= 0)), "occluded": "0", "points": f"{x:.3f},{y:.3f}"}
        ElementTree.SubElement(shape, "points", {"label": name} | mark)


def _write_sleap(path: Path, skeleton: Skeleton, found: Sequence[FoundPeople]) -> None:
    """Labels of SLEAP, which can be moved at once. Images of one size are a video of their own."""
    sleap_io = require_sleap_io()
    names = list(skeleton.file_names)
    shown_as = dict(zip(skeleton.file_keypoints, names))
    shape = sleap_io.Skeleton(nodes=[sleap_io.Node(name) for name in names], name=skeleton.category)
    for a, b in edges_of(skeleton):
        shape.add_edge(names[a - 1], names[b - 1])
    for left, right in skeleton.left_right:
        if left in shown_as and right in shown_as:
            shape.add_symmetry(shown_as[left], shown_as[right])
    tracks: dict[int, Any] = {}
    images: dict[tuple[int, int], list[FoundPeople]] = {}
    videos: dict[Source, list[FoundPeople]] = {}
    for people in found:
        group: Any = (
            images.setdefault(people.size, []) if people.number is None else videos.setdefault(people.source, [])
        )
        group.append(people)
    frames = []
    for own in [*images.values(), *videos.values()]:
        is_video = own[0].number is not None
        if is_video:
            video = sleap_io.Video(filename=own[0].image_path, open_backend=False)
        else:
            video = sleap_io.Video.from_filename([people.image_path for people in own])
        for index, people in enumerate(own):
            instances = []
            for keypoints, person_id in zip(people.keypoints, people.ids):
                points = np.where(keypoints[:, 2:] > 0, keypoints[:, :2], np.nan)
                track = None
                if person_id is not None:
                    track = tracks.setdefault(person_id, sleap_io.Track(name=str(person_id)))
                instances.append(sleap_io.Instance.from_numpy(points, skeleton=shape, track=track))
            number = people.number if is_video else index
            frames.append(sleap_io.LabeledFrame(video=video, frame_idx=number, instances=instances))
    labels = sleap_io.Labels(frames, skeletons=[shape])
    with atomic_replacement(resolve_link(path), ".slp") as temporary:
        sleap_io.save_slp(labels, str(temporary), embed=False, verbose=False)
