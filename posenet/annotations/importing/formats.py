"""Annotations in any format that is known, as a COCO-shaped document: ``read_annotations``.

A format is recognised by the content of a file or a folder; see ``FORMATS``, and docs/formats.md.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from posenet.annotations.coco import read_document
from posenet.annotations.importing.animals import find_tables, import_deeplabcut, import_sleap
from posenet.annotations.importing.coco_family import import_coco, import_posetrack
from posenet.annotations.importing.imported import ImportedAnnotations, Source, readable
from posenet.annotations.importing.labelling_tools import import_cvat, import_label_studio, import_labelme
from posenet.annotations.importing.published_sets import import_aic, import_interhand, import_lsp, import_mpii
from posenet.annotations.importing.yolo_pose import import_yolo_pose
from posenet.errors import DataError
from posenet.files import read_input

LABELME = "shapes imagePath"
"""What files of Labelme have."""
MAX_BYTES_OF_AN_IMAGE = 2**26
"""A larger JSON file is not that of an image or a video; it takes long to read."""


class Format(NamedTuple):
    """A format of annotations, by what its files are and contain."""

    name: str
    kind: str  # as in Source
    keys: str  # what the content has; see _has
    read: Callable[[Source], ImportedAnnotations]


FORMATS = (
    Format("YOLO-pose", "yaml", "", import_yolo_pose),
    Format("Label Studio", "list", "data", import_label_studio),
    Format("Labelme", "labelme", "", import_labelme),
    Format("CVAT", "xml", "annotations", import_cvat),
    Format("PoseTrack18", "posetrack", "", import_posetrack),
    Format("COCO", "object", "images categories", import_coco),
    Format("InterHand", "object", "images annotations.joint_valid", import_interhand),
    Format("COCO", "object", "images annotations", import_coco),
    Format("AIC", "list", "keypoint_annotations image_id", import_aic),
    Format("MPII", "list", "joints joints_vis image", import_mpii),
    Format("MPII", "list", "joint_self img_paths", import_mpii),
    Format("MPII", "mat", "RELEASE", import_mpii),
    Format("LSP", "mat", "joints", import_lsp),
    Format("DeepLabCut", "tables", "", import_deeplabcut),
    Format("SLEAP", "hdf5", "", import_sleap),
    Format("SLEAP", "mat", "positions", import_sleap),
    Format("SLEAP", "list", "filename class annotations", import_sleap),
)
"""All formats; the first that fits is taken."""


def read_annotations(
    path: str | Path,
    *,
    images: str | Path | None = None,
    split: str | None = None,
    frames: Path | None = None,
) -> ImportedAnnotations:
    """Read a data set in any of ``FORMATS`` as a COCO-shaped document, with the folder of its images and remarks.

    Args:
        path: a file, or a folder whose files are one data set together.
        images: folder of the images, at any depth; None searches beside the annotations.
        split: of YOLO-pose, the part to read; None is train. Other formats have no parts.
        frames: folder for the frames of videos; None for one beside the annotations.

    Raises:
        ConfigError: a package for the format is not installed.
        DataError: the format is not known, a file is damaged, or no image is found.
    """
    format_, source = recognise(path)
    if split is not None and format_.read is not import_yolo_pose:
        raise DataError(f"{path} is {format_.name}; leave out --split NAME, which is for YOLO-pose")
    with readable(source.path):
        return format_.read(replace(source, images=images, split=split, frames=frames))


def recognise(path: str | Path) -> tuple[Format, Source]:
    """The format of a file or a folder, and its content; ``DataError`` if it is not known or cannot be read."""
    path = Path(path)
    with readable(path):
        source = open_set_of_files(path) if path.is_dir() else _open_file(path)
    if source is None:
        raise DataError(f"the files of {path} are no data set together; give one of them")
    for format_ in FORMATS:
        if format_.kind == source.kind and _has(source.content, format_.keys):
            return format_, source
    if _has(source.content, "image_id score"):
        raise DataError(f"{path} has results, not annotations; give a file with images and annotations")
    if _has(source.content, "annotation_id") or _has(source.content, "categories info"):  # JSON-MIN, or notes.json
        raise DataError(f"{path} has no groups of keypoints; export the project from Label Studio as JSON")
    names = ", ".join(dict.fromkeys(format_.name for format_ in FORMATS))
    raise DataError(f"{path} has no annotations of {names}; give those, unpacked, as posenet docs formats describes")


def _has(content: Any, keys: str) -> bool:
    """Whether an object, or the first object of a list, has all keys; annotations.id is that of its first annotation.

    The only key of XML is the name of its root.
    """
    if isinstance(content, ElementTree.Element):
        return bool(content.tag == keys)
    first = content[0] if isinstance(content, list) and content else content
    for path in keys.split():
        key, _, inner = path.partition(".")
        if not isinstance(first, dict) or key not in first or (inner and not _has(first[key], inner)):
            return False
    return True


def open_set_of_files(folder: Path) -> Source | None:
    """The files of a folder that are one data set together: of DeepLabCut, Labelme or PoseTrack18; None for others."""
    tables = find_tables(folder) or sorted(folder.glob("CollectedData_*.csv"))
    if tables:
        return Source(folder, "tables", tables)
    for place in (folder, folder / "annotations"):
        files = sorted(file for file in place.glob("*") if file.suffix.lower() == ".json" and file.is_file())
        if not files or files[0].stat().st_size > MAX_BYTES_OF_AN_IMAGE:
            continue
        first = read_document(files[0])
        for kind, keys, least in (("labelme", LABELME, 1), ("posetrack", "images.is_labeled", 2)):
            if _has(first, keys) and len(files) >= least:
                contents = {files[0]: first} | {file: read_document(file) for file in files[1:]}
                return Source(
                    folder, kind, {file: content for file, content in contents.items() if _has(content, keys)}
                )
    return None


def _open_file(path: Path) -> Source:
    data = read_input(path, 512).removeprefix(b"\xef\xbb\xbf").lstrip()
    suffix = path.suffix.lower()
    if data.startswith(b"\x89HDF\r\n\x1a\n"):  # as files of SLEAP, NWB and JABS
        # DeepLabCut writes its labels as .csv, too.
        is_copy = path.stem.startswith("CollectedData_")
        return _open_file(path.with_suffix(".csv")) if is_copy else Source(path, "hdf5")
    if data.startswith(b"MATLAB") or suffix == ".mat":
        from scipy.io import loadmat  # takes a quarter of a second

        with readable(path), contextlib.suppress(NotImplementedError):
            return Source(path, "mat", dict(loadmat(path, simplify_cells=True)))
        return Source(path, "hdf5")  # as files of Matlab 7.3 are
    if data.startswith((b"scorer,", b"scorer;", b"scorer\t")):
        return Source(path, "tables", [path])
    if suffix in (".yaml", ".yml"):
        tables = find_tables(path.parent) if path.stem == "config" else []
        return Source(path.parent, "tables", tables) if tables else Source(path, "yaml")
    if data.startswith(b"<"):
        return Source(path, "xml", ElementTree.fromstring(read_input(path)))  # expat refuses endless entities
    if suffix == ".json" or data[:1] in (b"{", b"["):
        content = read_document(path)
        if isinstance(content, list):
            return Source(path, "list", content)
        return Source(path, "labelme", {path: content}) if _has(content, LABELME) else Source(path, "object", content)
    return Source(path, "unknown")
