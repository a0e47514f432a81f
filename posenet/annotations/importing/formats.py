"""Annotations in any format that is known, as a COCO-shaped document: ``read_annotations``.

A format is recognised by the content of a file or a folder; see ``FORMATS``, and docs/formats.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posenet.annotations.coco import SECTIONS, read_document
from posenet.annotations.importing.coco_family import import_coco, import_posetrack
from posenet.annotations.importing.cvat import import_cvat, parse_xml
from posenet.annotations.importing.deeplabcut import find_tables, import_deeplabcut, is_table
from posenet.annotations.importing.imported import ImportedAnnotations, Source, readable
from posenet.annotations.importing.label_studio import import_label_studio
from posenet.annotations.importing.labelme import import_labelme, is_labelme
from posenet.annotations.importing.published_sets import (
    import_aic,
    import_interhand,
    import_lsp,
    import_mpii,
    import_ochuman,
)
from posenet.annotations.importing.sleap import import_sleap
from posenet.annotations.importing.yolo_pose import import_yolo_pose
from posenet.errors import DataError
from posenet.files import read_input
from posenet.messages import to_single_line

HDF5 = b"\x89HDF\r\n\x1a\n"
"""How files of SLEAP, NWB and JABS begin."""
MAX_BYTES_OF_AN_IMAGE = 2**26
"""A larger JSON file is not that of an image or a video; it takes long to read."""

HINTS = {
    ("image_id", "score"): "results, not annotations; give a file with images and annotations",
    ("annotation_id",): "no groups of keypoints, as JSON-MIN of Label Studio; export the project as JSON",
    ("categories", "info"): "no annotations, as the notes of Label Studio's export as YOLO; export the project as JSON",
}
"""What is wrong with files that are no annotations, by keys of their content."""


class Format(NamedTuple):
    """A format of annotations."""

    name: str
    fits: Callable[[Source], bool]
    read: Callable[[Source], ImportedAnnotations]


def read_annotations(
    path: str | Path,
    *,
    images: str | Path | None = None,
    split: str | None = None,
    keypoints: Sequence[str] | None = None,
    part: str | None = None,
    frames: Path | None = None,
) -> ImportedAnnotations:
    """Read a data set in any of ``FORMATS`` as a COCO-shaped document, with the folder of its images and remarks.

    Args:
        path: a file, or a folder whose files are one data set together.
        images: folder of the images, at any depth; None searches beside the annotations.
        split: of YOLO-pose, the part to read; None is train. Other formats have no parts.
        keypoints: their names in order, for formats that do not state them.
        part: of COCO-WholeBody; see ``coco_family.PARTS``.
        frames: folder for the frames of videos; None for one beside the annotations.

    Raises:
        ConfigError: a package for the format is not installed.
        DataError: the format is not known, a file is damaged, or no image is found.
    """
    format_, source = recognise(path)
    if part is not None and format_.read is not import_coco:
        raise DataError(f"{path} is {format_.name}; part={part} is for COCO-WholeBody, leave it out")
    if split is not None and format_.read is not import_yolo_pose:
        raise DataError(
            f"{path} is {format_.name}, which has no splits as YOLO-pose has; leave out --split NAME (posenet "
            "annotations split divides a file)"
        )
    source = source._replace(images=images, split=split or source.split, keypoints=keypoints, part=part, frames=frames)
    with readable(source.path):
        return format_.read(source)


def recognise(path: str | Path) -> tuple[Format, Source]:
    """The format of a file or a folder, and its content; ``DataError`` if it is not known or cannot be read."""
    path = Path(path)
    source = open_set_of_files(path) if path.is_dir() else _open_file(path)
    if source is None:
        raise DataError(f"the files of {path} are no data set together; give one of them")
    for format_ in FORMATS:
        if format_.fits(source):
            return format_, source
    for keys, remedy in HINTS.items():
        if _is_list(source, *keys) or _has_keys(source.content, *keys):
            raise DataError(f"{source.path} has {remedy}")
    raise _unknown(source.path)


def _unknown(path: Path) -> DataError:
    names = ", ".join(format_.name for format_ in FORMATS)
    return DataError(f"{path} has no annotations that are known; give those of {names}, unpacked")


def open_set_of_files(folder: Path) -> Source | None:
    """The files of a folder that are one data set together: of DeepLabCut, Labelme or PoseTrack18; None for others."""
    tables = find_tables(folder) or sorted(folder.glob("CollectedData_*.csv"))
    if tables:
        return Source(folder, "csv files", tables)
    for place in (folder, folder / "annotations"):
        documents = sorted(file for file in place.glob("*") if file.suffix.lower() == ".json" and file.is_file())
        if not documents or documents[0].stat().st_size > MAX_BYTES_OF_AN_IMAGE:
            continue
        first = read_document(documents[0])
        if is_labelme(first) or (len(documents) > 1 and _is_posetrack(first)):
            fits = is_labelme if is_labelme(first) else _is_posetrack
            contents = {documents[0]: first} | {file: read_document(file) for file in documents[1:]}
            return Source(folder, "json files", {file: own for file, own in contents.items() if fits(own)})
    return None


def _open_file(path: Path) -> Source:
    try:
        beginning = read_input(path, 512).removeprefix(b"\xef\xbb\xbf").lstrip()
    except OSError as error:
        raise DataError(f"cannot read annotations {path}: {error.strerror or error}; correct the path") from error
    suffix = path.suffix.lower()
    if beginning.startswith(HDF5):
        table = path.with_suffix(".csv")  # DeepLabCut writes its labels in both formats
        return _open_file(table) if path.stem.startswith("CollectedData_") else Source(path, "hdf5", None)
    if beginning.startswith(b"MATLAB") or suffix == ".mat":
        return Source(path, "mat", _read_mat(path))
    if is_table(beginning):
        return Source(path, "csv files", [path])
    if suffix in (".yaml", ".yml"):
        tables = find_tables(path.parent) if path.stem == "config" else []
        return Source(path.parent, "csv files", tables) if tables else Source(path, "yaml", None)
    if beginning.startswith(b"<"):
        return Source(path, "xml", parse_xml(path))
    if suffix == ".json" or beginning[:1] in (b"{", b"["):
        return Source(path, "json", read_document(path))
    raise _unknown(path)


def _read_mat(path: Path) -> dict[str, Any] | None:
    """The variables of a MAT file; None for one of Matlab 7.3, which is HDF5."""
    from scipy.io import loadmat  # takes a quarter of a second

    try:
        return dict(loadmat(path, simplify_cells=True))
    except NotImplementedError:
        return None
    except Exception as error:  # SciPy raises errors of many kinds for damaged files
        reason = to_single_line(f"{type(error).__name__}: {error}")
        raise DataError(f"{path} is no whole MAT file ({reason}); get it again") from error


def _is_posetrack(content: object) -> bool:
    images = content.get("images") if isinstance(content, dict) else None
    return isinstance(images, list) and any(isinstance(image, dict) and "is_labeled" in image for image in images)


def _has_keys(content: object, *keys: str) -> bool:
    return isinstance(content, dict) and all(key in content for key in keys)


def _is_list(source: Source, *keys: str) -> bool:
    """Whether the content is a list of objects, of which the first has these keys."""
    return isinstance(source.content, list) and bool(source.content) and _has_keys(source.content[0], *keys)


def _is_labelme(source: Source) -> bool:
    files = source.content.values() if source.kind == "json files" else [source.content]
    return all(map(is_labelme, files))


def _is_interhand(source: Source) -> bool:
    annotations = source.content.get("annotations") if isinstance(source.content, dict) else None
    first = annotations[0] if isinstance(annotations, list) and annotations else None
    return _has_keys(first, "hand_type", "joint_valid") and not _has_keys(first, "keypoints")


FORMATS = (
    Format("YOLO-pose", lambda source: source.kind == "yaml", import_yolo_pose),
    Format("Label Studio", lambda source: _is_list(source, "data"), import_label_studio),
    Format("Labelme", _is_labelme, import_labelme),
    Format("CVAT", lambda source: source.kind == "xml" and source.content.tag == "annotations", import_cvat),
    Format("PoseTrack18", lambda source: source.kind == "json files", import_posetrack),
    Format("OCHuman", lambda source: _has_keys(source.content, "images", "keypoint_names"), import_ochuman),
    Format("InterHand", _is_interhand, import_interhand),
    Format(
        "COCO",
        lambda source: any(_has_keys(source.content, "images", key) for key in SECTIONS[1:]),
        import_coco,
    ),
    Format("AIC", lambda source: _is_list(source, "keypoint_annotations", "image_id"), import_aic),
    Format(
        "MPII",
        lambda source: (
            _is_list(source, "joints", "joints_vis", "image")
            or _is_list(source, "joint_self", "img_paths")
            or _has_keys(source.content, "RELEASE")
        ),
        import_mpii,
    ),
    Format("LSP", lambda source: _has_keys(source.content, "joints"), import_lsp),
    Format("DeepLabCut", lambda source: source.kind == "csv files", import_deeplabcut),
    Format(
        "SLEAP",
        lambda source: (
            source.kind == "hdf5"
            or (source.kind == "mat" and source.content is None)
            or _has_keys(source.content, "positions")
            or _is_list(source, "filename", "class", "annotations")
        ),
        import_sleap,
    ),
)
"""All formats; the first that fits is taken."""
