"""From annotations as they are to a trained network: the sequence of steps behind ``posenet train data.yaml``.

``prepare`` imports, checks and splits the annotations, drafts the skeleton and builds the stores; ``train`` then trains
on them, and ``conclude`` evaluates the best checkpoint. Every step calls the public function of a tool, and logs one
line that names the command that does it alone. All files that it makes are in the folder ``data`` of the run. They are
made again only if the data have changed.

Importing this module does not import PyTorch.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from posenet.annotations.coco import (
    AnnotationFile,
    describe_counts,
    read_document,
    refuse_labelme,
    remedy_for_format,
    select_sections,
    write_output,
)
from posenet.annotations.importing.label_studio import import_label_studio
from posenet.annotations.importing.yolo_pose import import_yolo_pose, places_of_split
from posenet.annotations.people import MIN_AREA
from posenet.annotations.rules import UNUSABLE_FILES, can_drop, find_problems, repairable
from posenet.annotations.skeleton_draft import SkeletonDraft, draft_skeleton
from posenet.checkpoints.folder import CheckpointFolder, refuse_run_in_use, run_lock
from posenet.data.build import MAX_UNREADABLE, build_store
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.files import read_input, sha256_of, write_atomically
from posenet.inference.evaluation import evaluate
from posenet.messages import pluralize
from posenet.settings import Config, ExifFrame
from posenet.settings.experiments import experiment_names
from posenet.settings.heights import nearest_height
from posenet.settings.reading import DATA_KEYS
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml
from posenet.training.run_settings import RUNS_FOLDER, load_experiment, require_weights_to_train

YAML_SUFFIXES = (".yaml", ".yml")
DATA_SUFFIXES = (*YAML_SUFFIXES, ".json")
"""What annotations are called; experiments end in .toml."""
OTHER_SUFFIXES = (".zip", ".xml")
"""What exports are called that have to be unpacked or made again."""
PLAIN_NAME = re.compile(
    "data|dataset|annotations|result|train|val(id)?|person_keypoints.*|_annotations.*", re.IGNORECASE
)
"""What annotation files are called that are not told from others by their names: a run takes that of the folder."""
SOURCE_FILE = "source.txt"
"""File with the path of the annotation file with which the run has begun."""
REPAIRED = "fixed.json"
"""File that the repair of annotations writes, in the commands that messages name."""
VALIDATION_SHARE = 0.1
"""Share of the images that is split off for validation."""
MAX_SIDE = 1536
"""Images with a longer side, in pixels, are stored smaller: three times the largest input of an experiment."""
SAMPLED_NAMES = 20
"""Number of listed images by which their folder is found."""
EVALUATE_EVERY = 5
"""Epochs between two APs where the experiment computes none: the best checkpoint and the drawings come from them."""
FEW_IMAGES = 20
"""An AP of fewer images depends on chance more than on the network."""
LOW_AP = 0.01
"""Below this AP, a run names what to try."""
SPLIT_FOLDERS = ("train", "valid", "val")
"""Folders that an export may give each split, with its annotations and images."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedData:
    """Data that are ready for training."""

    folder: Path
    """Folder of the run."""
    overrides: tuple[str, ...]
    """Settings of the run: its folder, its data and its skeleton."""
    images: Path
    """Folder of the validation images."""
    annotations: Path
    """Their COCO keypoint file."""
    settings: Config
    """Those that were given, without an experiment those of tiny."""

    @property
    def is_started(self) -> bool:
        """Whether the folder contains checkpoints of the run."""
        return CheckpointFolder(self.folder).has_checkpoints()


class _Part(NamedTuple):
    """The annotations of one split."""

    path: Path  # a COCO keypoint file
    document: dict[str, Any]
    images: Path


def are_annotations(source: object) -> TypeGuard[str | Path]:
    """Whether the first argument of ``train`` names annotations, not an experiment."""
    if not isinstance(source, (str, Path)):
        return False
    path = Path(source)
    return path.suffix.lower() in (*DATA_SUFFIXES, *OTHER_SUFFIXES) or (
        path.is_dir() and str(source) not in experiment_names()
    )


def prepare(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    images: str | Path | None = None,
    val: str | Path | None = None,
    val_images: str | Path | None = None,
    experiment: Config | str | Path | None = None,
) -> PreparedData:
    """Import, check and split annotations, draft their skeleton, and build their stores in the folder of the run.

    What is there already, and fits the data, stays as it is. The arguments are those of ``train``.

    Raises:
        CheckpointError: the folder of the run is in use, or contains a run with other data.
        ConfigError: a setting is not valid.
        DataError: the annotations or the images cannot be used.
    """
    for name, value in {"images": images, "val": val, "val_images": val_images}.items():
        if not isinstance(value, (str, Path, type(None))):
            raise ConfigError(f"{name} is {value!r}; give a path")
    for folder_of_images in (images, val_images):
        if folder_of_images is not None and not Path(folder_of_images).is_dir():
            raise DataError(f"{folder_of_images} is not a folder of images")
    source = Path(source)
    train_file, val_file = find_annotations(source, None if val is None else Path(val))
    settings = load_experiment(experiment or "tiny", overrides)
    pairs = {key.strip(): value.strip(" '\"") for key, _, value in (pair.partition("=") for pair in overrides)}
    if settings.model.skeleton != COCO and "model.skeleton" not in pairs:
        raise ConfigError(
            "with annotations, the skeleton is drafted, not that of the experiment; name a file with "
            "model.skeleton=FILE.toml"
        )
    for key in (f"data.{name}" for name in DATA_KEYS):
        if key in pairs:
            raise ConfigError(f"{key} names other data than {source}; leave out one of the two")
    exif_frame = settings.data.exif_frame
    folder = Path(settings.checkpoint.path or RUNS_FOLDER / _name_of_run(source))
    refuse_run_in_use(folder)
    is_started = CheckpointFolder(folder).has_checkpoints()
    if is_started:
        _refuse_other_annotations(folder, source, train_file)
    elif settings.train.weights:
        _refuse_unusable_weights(settings.train.weights)

    files = folder / "data"
    skeleton = Path(pairs.get("model.skeleton") or files / "skeleton.toml")
    stores = files / "train.h5", files / "val.h5"
    state = files / "checksum.txt"
    usable_train, usable_val = files / "usable_train.json", files / "usable_val.json"
    with run_lock(folder):
        files.mkdir(exist_ok=True)
        write_atomically(files / SOURCE_FILE, os.fsencode(train_file.resolve()))
        given = _read_parts(train_file, val_file, images, val_images, files)
        train, validation = given
        has_skeleton = str(skeleton) == BUILT_IN or skeleton.exists()
        if "model.skeleton" in pairs and not has_skeleton:
            raise ConfigError("with annotations, model.skeleton is the name of a TOML file, or coco")
        is_same = state.exists() and read_input(state) == _checksum(given, skeleton, exif_frame)
        split_off = () if validation else (files / "train.json", files / "val.json")
        if is_same and all(path.exists() for path in (*stores, *split_off)):
            _log.info("The data have not changed: using the stores and the skeleton in %s", files)
            selected = usable_val if validation else files / "val.json"
            validation = validation or train
            if selected.exists():
                validation = validation._replace(path=selected)
        else:
            if is_started and not is_same:
                _log.warning("The data have changed since the run in %s began: it goes on with the new ones", folder)
            for path in (state, usable_train, usable_val):
                path.unlink(missing_ok=True)
            repaired_train, repaired_val = _arguments_after_repair(source, images, given, val_file)
            known = load_skeleton(skeleton) if has_skeleton else None
            train = _check(train, usable_train, known, exif_frame, repaired_train)
            draft = None if known else _draft(train)
            if validation is not None:
                expected = known if draft is None else draft.skeleton
                validation = _check(validation, usable_val, expected, exif_frame, repaired_val)
            if draft is not None:  # only now: the names may be corrected in either file
                _write_draft(draft, train, skeleton)
            digest = _checksum(given, skeleton, exif_frame)  # before the builds, during which data may change
            if validation is None:
                train, validation = _split(train, files)
            for part, store in zip((train, validation), stores):
                _build(part, store, skeleton, exif_frame)
            write_atomically(state, digest)
    values: dict[str, object] = {
        "checkpoint.path": folder,
        "data.train": stores[0],
        "data.val": stores[1],
        "data.val_images": validation.images,
        "data.val_annotations": validation.path,
        "model.skeleton": skeleton,
    }
    if not settings.train.evaluate_every and "train.evaluate_every" not in pairs:
        values["train.evaluate_every"] = EVALUATE_EVERY
    # A text in JSON is one in TOML, too.
    data = [f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in values.items()]
    return PreparedData(folder, tuple(data), validation.images, validation.path, settings)


def _refuse_other_annotations(folder: Path, source: Path, train_file: Path) -> None:
    """Raise ``CheckpointError`` if the run in a folder has begun with another file of annotations, or with stores."""
    origin = folder / "data" / SOURCE_FILE
    began = Path(os.fsdecode(read_input(origin))) if origin.exists() else None
    if began != train_file.resolve():
        raise CheckpointError(
            f"{folder} already contains a run, which has begun with {began or 'stores'}, not with {source}; choose "
            "another folder with checkpoint.path=DIR"
        )


def _refuse_unusable_weights(weights: str) -> None:
    """Raise ``CheckpointError`` before stores are built, unless a new run can begin with these weights."""
    from posenet.checkpoints.weights import stored_config  # imports PyTorch

    require_weights_to_train(weights)
    stored_config(weights)


def find_annotations(source: Path, val: Path | None) -> tuple[Path, Path | None]:
    """The annotation files of a source for training and for validation; None if there is none for validation."""
    if source.is_dir():
        train, found = _search_folder(source)
        val = val or found
    else:
        train = source
    if val is not None and val.is_dir():
        val, _ = _search_folder(val)
    if train.suffix.lower() not in DATA_SUFFIXES or not train.exists():
        reason = "is not a file of annotations" if train.exists() else "does not exist"
        remedy = (
            "give a data.yaml (YOLO-pose), a .json (COCO keypoints or Label Studio) or a folder with one; an "
            "experiment is given as config=NAME, a store as data.train=FILE.h5"
        )
        raise DataError(f"{train} {reason}; {(train.exists() and remedy_for_format(train)) or remedy}")
    if val is None and _is_yolo(train):
        places = places_of_split(train, "val")
        val = train if places and places != places_of_split(train, "train") else None
    return train, val


def _search_folder(folder: Path) -> tuple[Path, Path | None]:
    """The annotation files of a folder: its data.yaml, or COCO files for train and val, or its only file."""
    tables = [path for path in sorted(folder.iterdir()) if _is_yolo(path)]
    if len(tables) == 1:
        return tables[0], None
    # Roboflow's export has train/_annotations.coco.json and valid/_annotations.coco.json.
    texts = _texts_in(folder, folder / "annotations") or _texts_in(*(folder / name for name in SPLIT_FOLDERS))
    texts = [path for path in texts if "keypoints" in path.stem] or texts
    trains = [path for path in texts if "train" in path.stem or path.parent == folder / "train"]
    vals = [path for path in texts if "val" in path.stem or path.parent.name in SPLIT_FOLDERS[1:]]
    if len(trains) == 1 and len(vals) <= 1:
        return trains[0], next(iter(vals), None)
    if len(tables) + len(texts) == 1:
        return texts[0], None
    if texts:
        refuse_labelme(read_document(texts[0]), texts[0])
    found = ", ".join(path.name for path in [*tables, *texts][:SAMPLED_NAMES]) or "none"
    raise DataError(f"{folder} does not have one file of annotations (found: {found}); give the file itself")


def _texts_in(*folders: Path) -> list[Path]:
    """The .json files in folders, of which some may not exist."""
    files = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return sorted(path for path in files if path.suffix.lower() == ".json")


def _name_of_run(source: Path) -> str:
    """The name of the folder or file; that of the folder for a file called data.yaml, train.json and so on."""
    path = source.resolve()
    if path.is_dir():
        return path.name
    names = (path.stem, *(folder.name for folder in path.parents))
    return next((name for name in names if name and not PLAIN_NAME.fullmatch(name)), "run")


def _read_parts(
    train_file: Path, val_file: Path | None, images: str | Path | None, val_images: str | Path | None, folder: Path
) -> tuple[_Part, _Part | None]:
    """The annotations for training, and those for validation if there are some."""
    train = _read_part(train_file, "train", images, folder)
    if val_file is not None:
        return train, _read_part(val_file, "val", val_images or (None if _is_yolo(val_file) else images), folder)
    if _is_yolo(train_file) and places_of_split(train_file, "val"):
        _log.warning("%s: val is ignored, because it names the images of train", train_file)
    return train, None


def _arguments_after_repair(
    source: Path, images: str | Path | None, given: tuple[_Part, _Part | None], val_file: Path | None
) -> tuple[list[object], list[object]]:
    """The arguments of a training on the file that the repair of one part writes, with the other part as it is."""
    train, validation = given
    train_arguments: list[object] = [REPAIRED, "--images", train.images]
    if validation is None or val_file is None:
        return train_arguments, []
    val_images = ["--val-images", validation.images]
    train_arguments += ["--val", val_file, *([] if _is_yolo(val_file) else val_images)]
    return train_arguments, [source, *(["--images", images] if images else []), "--val", REPAIRED, *val_images]


def _is_yolo(file: Path) -> bool:
    return file.suffix.lower() in YAML_SUFFIXES


def _read_part(file: Path, split: str, images: str | Path | None, folder: Path) -> _Part:
    """Read a COCO file, or import another one into the folder."""
    is_yolo = _is_yolo(file)
    content = None if is_yolo else read_document(file)
    if is_yolo and images:
        raise ConfigError(f"{file} names the folders of its images; leave out images=DIR and val_images=DIR")
    if isinstance(content, dict):
        sections = select_sections(content, file)
        return _Part(file, sections, _find_images(file, sections["images"], split, images))
    output = folder / f"imported_{split}.json"
    words: list[object] = ["annotations", "import", file]
    if is_yolo:
        imported = import_yolo_pose(file, split, number_unnamed=True)
        words += ["--split", split]
    else:
        if not (isinstance(content, list) and all(isinstance(task, dict) and "data" in task for task in content)):
            raise DataError(
                f"{file} has no annotations: a file of COCO keypoints has images, annotations and categories, and the "
                "JSON export of Label Studio (not JSON-MIN) is a list of tasks; results are not annotations"
            )
        if not images:
            images = file.parent / "images" if (file.parent / "images").is_dir() else file.parent
        imported = import_label_studio(file, images)
        words += ["--images", images]
    document = imported.document
    names = document["categories"][0]["keypoints"]
    if names[:1] == ["keypoint_1"]:
        _log.warning(
            "%s does not name its keypoints: they are called keypoint_1 and so on; list them in kpt_names", file
        )
        words += ["--keypoints", *names]
    write_output(output, json.dumps(document))
    _log.info("Imported %s: %s", describe_counts(document), _command(*words, "--output", output))
    for note in imported.notes:
        _log.warning("%s", note)
    return _Part(output, document, imported.folder)


def _find_images(file: Path, images: Sequence[dict[str, Any]], split: str, given: str | Path | None) -> Path:
    """The folder that is given, or the one beside an annotation file that has most of the images which it lists.

    ``DataError`` if the given one has none of them, but another one has; or if no folder or several have most.
    """
    listed = [image["file_name"] for image in images if isinstance(image.get("file_name"), str)]
    if given is not None and any(Path(given, name).is_file() for name in listed):
        return Path(given)
    names = listed[:SAMPLED_NAMES]
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    roots = [base] if given is None else [given, base]
    folders = [Path(folder) for root in roots for folder, _, _ in os.walk(root)]

    def folders_with_most(names: Sequence[str]) -> list[Path]:
        relative = [name for name in names if not Path(name).is_absolute()]
        counts = {folder: sum((folder / name).is_file() for name in relative) for folder in folders}
        return [folder for folder, count in counts.items() if 0 < count == max(counts.values())]

    found = folders_with_most(names)
    if given is not None:
        if not found:
            return Path(given)  # what is wrong with the files, the check finds
        argument = "images=DIR" if split == "train" else "val_images=DIR"
        raise DataError(
            f"{given} has none of the images of {file}, such as {names[0]}; {found[0]} has them: name that with "
            f"{argument}"
        )
    if len(found) == 1:
        return found[0]
    reason = f"{' and '.join(map(str, found[:2]))} both have" if found else f"no folder in {base} has"
    remedy = "name the folder with images=DIR, or val_images=DIR for validation"
    # Some exports write the path on the server or the machine of the labelling tool.
    same_files = [] if found else folders_with_most([re.split(r"[/\\]", name)[-1] for name in names])
    if same_files:
        fix = _command("annotations", "fix", file, "--images", same_files[0], "--output", REPAIRED)
        remedy = f"it names them as {names[0]}; {fix} takes those in {same_files[0]}"
    raise DataError(f"{reason} the images of {file}; {remedy}")


def _draft(train: _Part) -> SkeletonDraft:
    """Draft the skeleton of annotations without errors; it is COCO's if the keypoints are COCO's."""
    try:
        draft = draft_skeleton(train.path)
    except DataError as error:
        names = [item["name"] for item in train.document["categories"] if item.get("keypoints") and item.get("name")]
        choice = ["--category", names[0]] if len(names) > 1 else []
        remedy = _command("annotations", "skeleton", train.path, *choice, "--output", "mine.toml")
        raise DataError(f"{error}: {remedy}; then name that with model.skeleton=FILE.toml") from error
    if draft.skeleton.file_names == COCO.file_names:
        return SkeletonDraft(COCO, draft.category, {})
    return draft


def _write_draft(draft: SkeletonDraft, train: _Part, output: Path) -> None:
    """Write the drafted skeleton, and log what it has."""
    skeleton = draft.skeleton
    command = _command("annotations", "skeleton", train.path, "--output", output)
    write_output(output, skeleton_to_toml(skeleton, draft.comments))
    if skeleton == COCO:
        _log.info("Skeleton: that of COCO: %s", command)
        return
    pairs = pluralize(len(skeleton.left_right), "pair of left and right", "pairs of left and right")
    counts = pluralize(skeleton.num_keypoints, "keypoint"), pairs, pluralize(skeleton.num_parts, "part")
    _log.info("Drafted a skeleton of %s, %s and %s; correct the file: %s", *counts, command)
    categories = [item for item in train.document["categories"] if item.get("keypoints")]
    same = [str(item.get("name")) for item in categories]
    if len(same) > 1:
        _log.warning(
            "%s have the same keypoints: they are trained and evaluated as one kind of object", ", ".join(same)
        )
    if not skeleton.left_right and not any(item.get("flip_idx") for item in categories):
        _log.warning(
            "No keypoint has a left or right twin. If the objects have sides, write left_right in %s, and begin "
            "again with another --checkpoint-path: without it, mirrored images teach wrong sides",
            output,
        )


def _checksum(parts: Iterable[_Part | None], skeleton: Path, exif_frame: ExifFrame) -> bytes:
    """A text that is another one if annotations, sizes or times of images, or the file of the skeleton have changed."""
    digest = hashlib.sha256(exif_frame.encode())
    if skeleton.exists():
        digest.update(sha256_of(skeleton).encode())
    for part in filter(None, parts):
        digest.update(sha256_of(part.path).encode() + str(part.images.absolute()).encode())
        for image in part.document["images"]:
            path = part.images / str(image.get("file_name"))
            status = path.stat() if path.is_file() else None
            digest.update(repr(status and (status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest().encode()


def _check(
    part: _Part, usable: Path, skeleton: Skeleton | None, exif_frame: ExifFrame, repaired: Sequence[object]
) -> _Part:
    """Lint annotations and images, and return what can be used; ``DataError`` if there are errors.

    A few images that cannot be used are left out, as a build does: the file ``usable`` gets the others. ``repaired``
    are the arguments of a training on the repaired file.
    """
    file = AnnotationFile(part.path, part.document, skeleton, part.images, exif_frame)
    findings = find_problems(file)
    lint = _command("annotations", "lint", part.path, "--images", part.images)
    fix = _command("annotations", "fix", part.path, "--images", part.images, "--output", REPAIRED)
    codes = ", ".join(repairable(findings))
    repairs = f"; {fix} repairs what the files determine of {codes}" if codes else ""
    unusable = {
        file.image_ids.values[row] for row, check in file.file_checks.items() if check.problem in UNUSABLE_FILES
    }
    left_out = unusable if len(unusable) <= math.ceil(MAX_UNREADABLE * len(file.images)) else set()
    if left_out and len(left_out) < len(file.images):
        for finding in findings:
            if finding.code in UNUSABLE_FILES.values():
                _log.warning("left out: %s", finding.summary)
        findings = [finding for finding in findings if finding.code not in UNUSABLE_FILES.values()]
    if can_drop(findings):
        command = "--drop" if codes else f"{fix} --drop"
        repairs += f"; {command} leaves out single entries that cannot be repaired"
    if repairs:
        repairs += f"; then {_command('train', *repaired)}"
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        for finding in errors:
            _log.error("%s\n  fix: %s [%s]", finding.summary, finding.remedy, finding.code)
        kinds = pluralize(len(errors), "kind of error", "kinds of errors")
        listed = ", ".join(finding.code for finding in errors)
        raise DataError(f"{part.path} has {kinds} ({listed}); {lint} describes them{repairs}")
    warnings = f"warnings: {', '.join(finding.code for finding in findings)}" if findings else "no warnings"
    _log.info("Checked %s (no errors, %s): %s%s", part.path, warnings, lint, repairs)
    return _select(part, {image["id"] for image in part.document["images"]} - left_out, usable) if left_out else part


def _select(part: _Part, image_ids: Collection[int], path: Path) -> _Part:
    """Write some of the images and their annotations to a file of their own."""
    content = part.document | {
        "images": [image for image in part.document["images"] if image["id"] in image_ids],
        "annotations": [entry for entry in part.document["annotations"] if entry["image_id"] in image_ids],
    }
    write_output(path, json.dumps(content))
    return _Part(path, content, part.images)


def _split(part: _Part, folder: Path) -> tuple[_Part, _Part]:
    """Split off images for validation; a checksum of its name decides for each, so that it stays where it is."""
    document = part.document
    with_people = {entry.get("image_id") for entry in document["annotations"] if any(entry.get("keypoints") or [])}
    names = {image["id"]: image["file_name"] for image in document["images"] if image["id"] in with_people}
    if len(names) < 2:
        raise DataError(f"{part.path} has keypoints in {pluralize(len(names), 'image')}; training needs two or more")
    rank = {number: int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32 for number, name in names.items()}
    ordered = sorted(rank, key=rank.__getitem__)
    count = sum(value < VALIDATION_SHARE for value in rank.values())
    chosen = set(ordered[: min(max(count, 1), len(ordered) // 2)])
    others = {image["id"] for image in document["images"]} - chosen
    train, val = _select(part, others, folder / "train.json"), _select(part, chosen, folder / "val.json")
    _log.info(
        "Split off %d of %s for validation, by a checksum of their names; --val FILE names your own: %s",
        len(chosen),
        pluralize(len(document["images"]), "image"),
        val.path,
    )
    return train, val


def _build(part: _Part, output: Path, skeleton: Path, exif_frame: ExifFrame) -> None:
    """Build the store of a split for a skeleton file."""
    report = build_store(
        part.images,
        part.path,
        output,
        overwrite=True,
        skeleton=load_skeleton(skeleton),
        exif_frame=exif_frame,
        max_side=MAX_SIDE,
        background=True,
    )
    words: list[object] = ["build-hdf5", "--images", part.images, "--annotations", part.path, "--output", output]
    words += ["--max-side", MAX_SIDE, "--background"]
    summary = report.summary
    counts = pluralize(summary.num_images, "image"), summary.skeleton.count(summary.num_people)
    text = f", {report.num_shrunk} made smaller" if report.num_shrunk else ""
    if num_background := summary.num_background:
        background = summary.skeleton.name_objects("as images without people")
        text += f", {num_background} without annotations, {background} (if they are not: --set data.background=0)"
    if report.num_without_main_person:
        left_out = pluralize(report.num_without_main_person, "image")
        needed = f"{summary.skeleton.min_labelled_keypoints} labelled keypoints and an area of {MIN_AREA} square pixels"
        text += f", {left_out} left out: no {summary.skeleton.category} has {needed}"
    _log.info("Built %s of %s with %s%s: %s", output.name, *counts, text, _command(*words, "--skeleton", skeleton))
    for line in report.skipped:
        _log.warning("left out: %s", line)


def choose_experiment(
    data: PreparedData, overrides: Sequence[str], experiment: Config | str | Path | None, has_accelerator: bool
) -> tuple[Config | str | Path | None, list[str]]:
    """The experiment and the overrides of a run; of a new one, a log message names the command that trains alone.

    If no experiment is named, it is one for the device, with the network of ``train.weights`` if there are some; but a
    run that continues keeps its own. The height for prediction goes with the size of the training input.
    """
    from posenet.checkpoints.weights import stored_config  # imports PyTorch, which the caller has done

    pairs = [*data.overrides, *overrides]
    if data.is_started and experiment is None:
        return None, pairs
    choice = ""
    if experiment is None:
        experiment, device = ("small", "a GPU") if has_accelerator else ("tiny", "a CPU")
        choice = f", for {device}"
        if weights := data.settings.train.weights:
            network = stored_config(weights).model
            pairs = [f"model.{key}={getattr(network, key)}" for key in ("stacks", "width", "growth")] + pairs
            choice += f", with the network of {weights}"
        choice += "; --config NAME takes another one (posenet config lists them)"
    before, after = load_experiment(experiment, ()), load_experiment(experiment, pairs)
    is_set = any(pair.partition("=")[0].strip() == "inference.height" for pair in pairs)
    if after.train.size != before.train.size and not is_set:
        height = before.inference.height * after.train.size[0] / before.train.size[0]
        pairs.append(f"inference.height={nearest_height(height)}")
        choice += f"; {pairs[-1]} goes with train.input_size"
    if data.is_started:
        return experiment, pairs
    name = "FILE.toml" if isinstance(experiment, Config) else experiment
    last = {pair.partition("=")[0].strip(): pair for pair in pairs}  # the others of the same setting count for nothing
    words = [pair.replace('"', "") for pair in last.values()]
    _log.info("Experiment %s%s: %s", name, choice, _command("train", "--config", name, "--set", *words))
    return experiment, pairs


def conclude(data: PreparedData, progress: bool = True) -> dict[str, float]:
    """Evaluate the best checkpoint of a run, and log what the run has made; return COCO's metrics."""
    # These import PyTorch, as the run has done.
    from posenet.checkpoints.file import read_checkpoint
    from posenet.training.log import DRAWINGS_FOLDER

    folder = CheckpointFolder(data.folder)
    best = folder.best if folder.best.exists() else folder.last
    words = ["evaluate", "--checkpoint", best, "--images", data.images, "--annotations", data.annotations]
    device = data.settings.train.device
    evaluation = evaluate(best, data.images, data.annotations, progress=progress, device=device)
    if evaluation is None:  # a file without people is refused before the run
        return {}
    ap, count = evaluation.metrics["AP"], pluralize(evaluation.images, "image")
    _log.info("AP %.3f of %s on %s that it was not trained on: %s", ap, best, count, _command(*words))
    if evaluation.images < FEW_IMAGES:
        _log.warning("An AP on %s depends on chance; give %d or more for validation (--val)", count, FEW_IMAGES)
    if advice := evaluation.advise_on_min_score():
        _log.info("%s", advice)
    if ap < LOW_AP:
        _log.warning("Almost nothing is found: give more epochs (--epochs), or read posenet docs troubleshooting")
    sheet = data.folder / DRAWINGS_FOLDER / f"epoch_{read_checkpoint(best)['progress']['epoch']:04d}.jpg"
    if sheet.exists():  # of the epoch after which the checkpoint was saved
        _log.info("Annotations beside what was found: %s", sheet)
    words = ["predict", "IMAGES", "--checkpoint", best, "--output", data.folder / "drawn"]
    words += ["--min-score", f"{evaluation.min_score:g}"] if advice else []
    _log.info("Next: %s", _command(*words))
    return evaluation.metrics


def _command(*words: object) -> str:
    """A command of posenet, as it is typed."""
    return shlex.join(["posenet", *map(str, words)])
