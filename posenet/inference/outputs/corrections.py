"""People in the formats of labelling tools, to be corrected there: SLEAP, CVAT, Label Studio.

What is corrected comes back with ``annotations import``, or goes into ``train``. Coordinates are those of the image as
it is displayed; a keypoint that was not found is not labelled.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from posenet.errors import ConfigError, DataError
from posenet.files import atomic_replacement, check_outputs, resolve_link, write_atomically
from posenet.inference.media.sources import Source
from posenet.inference.outputs.people_files import Record, Write, edges_of, image_numbers, listed_names, record_of
from posenet.inference.result import Result
from posenet.skeleton import Skeleton

Found = tuple[Source, Record]
"""An image or a frame with the people of whom keypoints were found; their ``keypoints`` are arrays (F, 3) of x, y and
score in the order of annotation files, 0 for those that were not found."""


def export_results(results: Iterable[Result], path: str | Path) -> None:
    """Write results to a file in which a labelling tool corrects them; an existing file is replaced.

    Args:
        path: .slp is for SLEAP, .xml for CVAT ("CVAT 1.1"), .json for Label Studio (predictions of tasks).

    Raises:
        ConfigError: the suffix is not one of these, or ``sleap-io`` is not installed.
        DataError: there are no results, the images are not files, or the file cannot be written.
    """
    path = Path(path)
    readable = [result for result in results if result.error is None]
    if not readable:
        raise DataError(f"there are no results to write to {path}; give those of images that can be read")
    sources = list(dict.fromkeys(result.frame.source for result in readable))
    check_format(path, sources)
    check_outputs([path], [source.path for source in sources if source.path is not None], overwrite=True)
    numbers = image_numbers(sources)
    with write_corrections(path, readable[0].skeleton) as write:
        for result in readable:
            write(result.frame.source, record_of(result, numbers))


def check_format(path: Path, sources: Iterable[Source]) -> None:
    """Raise ``ConfigError`` if no tool has files of this suffix or a package is missing, ``DataError`` for sources that
    the tool cannot open."""
    suffix = path.suffix.lower()
    if suffix not in WRITERS:
        raise ConfigError(f"{path} is no file for corrections; end its name with {', '.join(WRITERS)}")
    if suffix == ".slp":
        from posenet.annotations.importing.animals import require_sleap_io  # reading annotations needs other packages

        require_sleap_io()
    for source in sources:
        if source.path is None and not (source.kind == "image" and suffix != ".slp"):  # SLEAP opens images itself
            raise DataError(f"{source.name} is no file, which a labelling tool needs; save the image first")
        if source.kind != "image" and suffix != ".slp":  # only SLEAP takes a video
            raise DataError(f"{source.name} is no single image; export it to .slp, or predict its frames as images")


@contextlib.contextmanager
def write_corrections(path: Path, skeleton: Skeleton) -> Iterator[Write]:
    """Collect the people of all images, and write the file at the end, completely or not at all."""
    found: list[Found] = []

    def write(source: Source, record: Record) -> None:
        people = [person | {"keypoints": np.reshape(person["keypoints"], (-1, 3))} for person in record["people"]]
        people = [person for person in people if person["keypoints"][:, 2].any()]
        found.append((source, record | {"people": people}))

    yield write
    WRITERS[path.suffix.lower()](path, skeleton, found)


def _write_label_studio(path: Path, skeleton: Skeleton, found: Sequence[Found]) -> None:
    """Tasks with predictions: a rectangle for each person, with the keypoints in it."""
    names = listed_names([source for source, _ in found])
    tasks = []
    for source, record in found:
        width, height = record["width"], record["height"]
        common = {"to_name": "image", "original_width": width, "original_height": height, "image_rotation": 0}
        regions: list[dict[str, Any]] = []
        for number, person in enumerate(record["people"], 1):
            keypoints = person["keypoints"] * (100 / width, 100 / height, 1)
            rows = np.flatnonzero(keypoints[:, 2] > 0)
            x, y = keypoints[rows, :2].min(axis=0).tolist()
            sides = np.maximum(np.ptp(keypoints[rows, :2], axis=0), (100 / width, 100 / height)).tolist()
            value: dict[str, Any] = {"x": x, "y": y, "width": sides[0], "height": sides[1], "rotation": 0}
            value["rectanglelabels"] = [skeleton.category]
            rectangle = {"id": f"p{number}", "type": "rectanglelabels", "from_name": "box", "score": person["score"]}
            regions.append(rectangle | common | {"value": value})
            for row in rows.tolist():
                x, y = keypoints[row, :2].tolist()
                value = {"x": x, "y": y, "width": 0.5, "keypointlabels": [skeleton.file_names[row]]}
                point = {"id": f"p{number}k{row}", "type": "keypointlabels", "from_name": "keypoints"}
                regions.append(point | common | {"parentID": f"p{number}", "value": value})
        scores = [person["score"] for person in record["people"]]
        prediction = {"model_version": "posenet", "score": float(np.mean(scores or [0])), "result": regions}
        tasks.append({"data": {"image": f"/data/local-files/?d={names[source]}"}, "predictions": [prediction]})
    write_atomically(path, json.dumps(tasks).encode())


def _write_cvat(path: Path, skeleton: Skeleton, found: Sequence[Found]) -> None:
    """Skeletons in "CVAT 1.1"."""
    root = ElementTree.Element("annotations")
    _add(root, "version", text="1.1")
    labels = _add(_add(_add(root, "meta"), "task"), "labels")
    lines = [f'<line data-type="edge" data-node-from="{a}" data-node-to="{b}"></line>' for a, b in edges_of(skeleton)]
    lines += [
        f'<circle data-type="element node" data-node-id="{number}" data-label-name="{name}"></circle>'
        for number, name in enumerate(skeleton.file_names, 1)
    ]
    described = [{"name": skeleton.category, "type": "skeleton", "svg": "".join(lines)}]
    described += [{"name": name, "type": "points", "parent": skeleton.category} for name in skeleton.file_names]
    for content in described:
        label = _add(labels, "label")
        for tag, text in content.items():
            _add(label, tag, text)
    names = listed_names([source for source, _ in found])
    for number, (source, record) in enumerate(found):
        image = _add(root, "image", id=number, name=names[source], width=record["width"], height=record["height"])
        for person in record["people"]:
            shape = _add(image, "skeleton", label=skeleton.category, source="auto", z_order=0)
            for name, (x, y, score) in zip(skeleton.file_names, person["keypoints"].tolist()):
                _add(shape, "points", label=name, outside=int(score <= 0), occluded=0, points=f"{x:.3f},{y:.3f}")
    ElementTree.indent(root)
    write_atomically(path, ElementTree.tostring(root, "unicode").encode("utf-8", "surrogateescape"))


def _add(parent: ElementTree.Element, tag: str, text: str | None = None, **attributes: object) -> ElementTree.Element:
    element = ElementTree.SubElement(parent, tag, {name: str(value) for name, value in attributes.items()})
    element.text = text
    return element


def _write_sleap(path: Path, skeleton: Skeleton, found: Sequence[Found]) -> None:
    """Labels of SLEAP, which can be moved at once. Images of one size are a video of their own."""
    import sleap_io

    names = list(skeleton.file_names)
    shown_as = dict(zip(skeleton.file_keypoints, names))
    shape = sleap_io.Skeleton(nodes=[sleap_io.Node(name) for name in names], name=skeleton.category)
    for a, b in edges_of(skeleton):
        shape.add_edge(names[a - 1], names[b - 1])
    for left, right in skeleton.left_right:
        if left in shown_as and right in shown_as:
            shape.add_symmetry(shown_as[left], shown_as[right])
    tracks: dict[int, Any] = {}
    videos: dict[object, list[Found]] = {}
    for source, record in found:
        group = source if "frame" in record else (record["height"], record["width"])
        videos.setdefault(group, []).append((source, record))
    frames = []
    for key, own in videos.items():
        paths = [str(source.path and source.path.absolute()) for source, _ in own]
        is_video = isinstance(key, Source)
        video = sleap_io.Video(paths[0], open_backend=False) if is_video else sleap_io.Video.from_filename(paths)
        for index, (_, record) in enumerate(own):
            instances = []
            for person in record["people"]:
                points = np.where(person["keypoints"][:, 2:] > 0, person["keypoints"][:, :2], np.nan)
                number = person.get("id")
                track = None if number is None else tracks.setdefault(number, sleap_io.Track(name=str(number)))
                instances.append(sleap_io.Instance.from_numpy(points, skeleton=shape, track=track))
            place = record.get("frame", index)
            frames.append(sleap_io.LabeledFrame(video=video, frame_idx=place, instances=instances))
    labels = sleap_io.Labels(frames, skeletons=[shape])
    with atomic_replacement(resolve_link(path), ".slp") as temporary:
        sleap_io.save_slp(labels, str(temporary), embed=False, verbose=False)


WRITERS = {".slp": _write_sleap, ".xml": _write_cvat, ".json": _write_label_studio}
"""What writes the file of a tool, by its suffix."""
