"""What a user means by annotations: which files, and which folder of images.

Importing this module does not import PyTorch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeGuard

from posenet.annotations.coco import remedy_for_format
from posenet.annotations.importing.formats import SUFFIXES, open_set_of_files
from posenet.annotations.importing.yolo_pose import places_of_split
from posenet.errors import DataError
from posenet.files import read_input
from posenet.settings.experiments import experiment_names

YAML_SUFFIXES = (".yaml", ".yml")
DATA_SUFFIXES = tuple(SUFFIXES - {".h5"})
"""What annotations are called; experiments end in .toml, and stores in .h5."""
OTHER_SUFFIXES = (".zip",)
"""What exports are called that have to be unpacked."""
SHOWN_FILES = 20
"""Number of file names in a message."""
MAX_BEGINNING = 4096
"""So many bytes of a file show whether it has annotations or results."""
SPLIT_FOLDERS = ("train", "valid", "val")
"""Folders that an export may give each split, with its annotations and images."""


def are_annotations(source: object) -> TypeGuard[str | Path]:
    """Whether the first argument of ``train`` names annotations, not an experiment."""
    if not isinstance(source, (str, Path)):
        return False
    path = Path(source)
    return path.suffix.lower() in (*DATA_SUFFIXES, *OTHER_SUFFIXES) or (
        path.is_dir() and str(source) not in experiment_names()
    )


def find_annotations(source: Path, val: Path | None) -> tuple[Path, Path | None]:
    """The annotation files of a source for training and for validation; None if there is none for validation."""
    if source.is_dir():
        train, found = _search_folder(source)
        val = val or found
    else:
        train = source
    if val is not None and val.is_dir():
        val, _ = _search_folder(val)
    is_known = train.is_dir() or train.suffix.lower() in DATA_SUFFIXES
    if not is_known or not train.exists():
        reason = "is not a file of annotations" if train.exists() else "does not exist"
        remedy = (
            "give a data.yaml (YOLO-pose), a .json (COCO, Label Studio), another one of posenet docs formats, or its "
            "folder; an experiment is given as config=NAME, a store as data.train=FILE.h5"
        )
        raise DataError(f"{train} {reason}; {(train.exists() and remedy_for_format(train)) or remedy}")
    if val is None and is_yolo(train):
        places = places_of_split(train, "val")
        val = train if places and places != places_of_split(train, "train") else None
    return train, val


def is_yolo(file: Path) -> bool:
    """Whether the name is that of a YOLO-pose data set, which names the folders of its images itself."""
    return file.suffix.lower() in YAML_SUFFIXES


def _search_folder(folder: Path) -> tuple[Path, Path | None]:
    """The annotations of a folder: the folder itself if all of its files are one set; its data.yaml, or COCO files for
    train and val, or its only file."""
    if open_set_of_files(folder):
        return folder, None
    tables = [path for path in sorted(folder.iterdir()) if is_yolo(path)]
    if len(tables) == 1:
        return tables[0], None
    # Roboflow's export has train/_annotations.coco.json and valid/_annotations.coco.json.
    texts = _texts_in(folder, folder / "annotations") or _texts_in(*(folder / name for name in SPLIT_FOLDERS))
    texts = [path for path in texts if "keypoints" in path.stem] or texts
    trains = [path for path in texts if "train" in _words(path) or path.parent == folder / "train"]
    vals = [path for path in texts if {"val", "valid"} & _words(path) or path.parent.name in SPLIT_FOLDERS[1:]]
    if len(trains) == 1 and len(vals) <= 1:
        return trains[0], next(iter(vals), None)
    if len(tables) + len(texts) == 1:
        return texts[0], None
    others = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in DATA_SUFFIXES]
    if len(others) == 1:
        return others[0], None
    found = ", ".join(path.name for path in ([*tables, *texts] or others)[:SHOWN_FILES]) or "none"
    raise DataError(f"{folder} does not have one file of annotations (found: {found}); give the file itself")


def _words(path: Path) -> set[str]:
    """The words in the name of a file: person, keypoints and train of person_keypoints_train2017.json."""
    return set(re.findall("[a-z]+", path.stem.lower()))


def _texts_in(*folders: Path) -> list[Path]:
    """The .json files in folders, of which some may not exist; those that are results, with scores, are left out."""
    files = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return sorted(path for path in files if path.suffix.lower() == ".json" and not _are_results(path))


def _are_results(path: Path) -> bool:
    """Whether a file begins as a list of results does."""
    try:
        beginning = read_input(path, MAX_BEGINNING)
    except OSError:
        return False
    return beginning.lstrip().startswith(b"[") and b'"score"' in beginning and b'"image_id"' in beginning
