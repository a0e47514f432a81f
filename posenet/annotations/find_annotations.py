"""What a user means by annotations: which files. Importing this module does not import PyTorch."""

import re
from pathlib import Path
from typing import TypeGuard

from posenet.errors import DataError
from posenet.messages import command_line
from posenet.settings.reading import experiment_names

YAML_SUFFIXES = (".yaml", ".yml")
DATA_SUFFIXES = (*YAML_SUFFIXES, ".json", ".xml", ".csv", ".mat", ".slp", ".nwb")
"""What annotations are called; experiments end in .toml, and stores in .h5."""
SPLIT_FOLDERS = ("train", "valid", "val")
"""Folders that an export may give each split, with its annotations and images."""


def are_annotations(source: object) -> TypeGuard[str | Path]:
    """Whether the first argument of ``train`` names annotations, not an experiment."""
    if not isinstance(source, (str, Path)):
        return False
    path = Path(source)
    is_folder = path.is_dir() and str(source) not in experiment_names()
    return is_folder or path.suffix.lower() in (*DATA_SUFFIXES, ".zip")  # exports that have to be unpacked


def find_annotations(source: Path, val: Path | None) -> tuple[Path, Path | None]:
    """The annotation files of a source for training and for validation; None if there is none for validation."""
    train = source
    if source.is_dir():
        train, found = _search_folder(source)
        val = val or found
    if val is not None and val.is_dir():
        val, _ = _search_folder(val)
    if not train.exists() or not (train.is_dir() or train.suffix.lower() in DATA_SUFFIXES):
        reason = "is not a file of annotations" if train.exists() else "does not exist"
        raise DataError(
            f"{train} {reason}; give a data.yaml (YOLO-pose), a .json (COCO, Label Studio), another one of posenet "
            "docs formats, unpacked, or its folder; an experiment is given as --config NAME, a store as "
            "--set data.train=FILE.h5"
        )
    if val is None and is_yolo(train):
        from posenet.annotations.importing.yolo_pose import places_of_split

        places = places_of_split(train, "val")
        val = train if places and places != places_of_split(train, "train") else None
    return train, val


def is_yolo(file: Path) -> bool:
    """Whether a file is that of a YOLO-pose data set, which names the folders of its images itself.

    The ``config.yaml`` of a DeepLabCut project is none.
    """
    is_project = file.stem == "config" and (file.parent / "labeled-data").is_dir()
    return file.suffix.lower() in YAML_SUFFIXES and not is_project


def _search_folder(folder: Path) -> tuple[Path, Path | None]:
    """The annotations of a folder: the folder itself if all of its files are one set; its data.yaml, or COCO files for
    train and val, or its only file."""
    try:
        from posenet.annotations.importing.formats import open_set_of_files
    except ModuleNotFoundError:  # a part of the package that may be left out
        pass
    else:
        if open_set_of_files(folder) is not None:
            return folder, None
    tables = [path for path in sorted(folder.iterdir()) if is_yolo(path)]
    # Roboflow's export has train/_annotations.coco.json and valid/_annotations.coco.json.
    texts = _texts_in(folder, folder / "annotations") or _texts_in(*(folder / name for name in SPLIT_FOLDERS))
    texts = [path for path in texts if "keypoints" in path.stem] or texts
    trains = [path for path in texts if "train" in _words(path) or path.parent == folder / "train"]
    vals = [path for path in texts if {"val", "valid"} & _words(path) or path.parent.name in SPLIT_FOLDERS[1:]]
    if len(tables) != 1 and len(trains) == 1 and len(vals) <= 1:
        return trains[0], next(iter(vals), None)
    others = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in DATA_SUFFIXES]
    for found in (tables, [*tables, *texts], others):
        if len(found) == 1:
            return found[0], None
    commands = [command_line("train", path) for path in ([*tables, *texts] or others)[:5]]
    such = f"several files of annotations; give one of them: {', or '.join(commands)}"
    raise DataError(f"{folder} has {such if commands else 'no file of annotations; give the file itself'}")


def _words(path: Path) -> set[str]:
    """The words in the name of a file: person, keypoints and train of person_keypoints_train2017.json."""
    return set(re.findall("[a-z]+", path.stem.lower()))


def _texts_in(*folders: Path) -> list[Path]:
    """The .json files in folders, of which some may not exist."""
    files = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return sorted(path for path in files if path.suffix.lower() == ".json")
