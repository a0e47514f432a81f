"""The stores of a run, from its annotations: these are imported, checked and split, and their skeleton is drafted.

Every step calls the public function of a tool, and logs one line that names the command that does it alone. Importing
this module does not import PyTorch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posenet.annotations.coco import AnnotationFile, describe_counts, read_document, select_sections, write_output
from posenet.annotations.importing.formats import read_annotations, recognise
from posenet.annotations.importing.label_studio import import_label_studio
from posenet.annotations.importing.yolo_pose import import_yolo_pose, places_of_split
from posenet.annotations.main_persons import MIN_AREA
from posenet.annotations.rules import UNUSABLE_FILES, find_problems, list_errors
from posenet.annotations.skeleton_draft import SkeletonDraft, draft_skeleton
from posenet.annotations.split_and_merge import groups_of_copies, reduce_document
from posenet.data.build import MAX_UNREADABLE, build_store
from posenet.data.inspection import find_stored_files
from posenet.data.store_list import open_data_sets
from posenet.errors import ConfigError, DataError
from posenet.files import read_input, sha256_of, write_atomically
from posenet.messages import command_line, pluralize
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml
from posenet.training.find_annotations import find_images, is_yolo

VALIDATION_SHARE = 0.1
"""Share of the images that is split off for validation."""
MAX_SIDE = 1536
"""Images with a longer side, in pixels, are stored smaller: three times the largest input of an experiment."""
SKELETON_FILE = "skeleton.toml"
"""Where the skeleton is drafted, if none is given."""
CHECKSUM_FILE = "checksum.txt"
"""File with the checksum of the data from which the stores beside it are built; it is written last."""

_log = logging.getLogger(__name__)


class StorePlan(NamedTuple):
    """From which annotations the stores of a run are made, and where."""

    train_file: Path
    val_file: Path | None  # None splits off images for validation
    images: str | Path | None  # folders of images, as they are given
    val_images: str | Path | None
    folder: Path  # of all files that are made
    skeleton: Path  # skeleton file; it is drafted if it is ``SKELETON_FILE`` and does not exist
    exif_frame: ExifFrame
    allow_overlap: bool  # of the images for validation and those for training

    @property
    def has_skeleton(self) -> bool:
        """Whether the skeleton is there already."""
        return str(self.skeleton) == BUILT_IN or self.skeleton.exists()

    @property
    def flags(self) -> list[object]:
        """Those by which a command that is named reads images as the run does."""
        return [] if self.exif_frame == DataConfig.exif_frame else ["--set", f"data.exif_frame={self.exif_frame}"]


class _Part(NamedTuple):
    """The annotations of one split."""

    split: str  # train or val
    path: Path  # a COCO keypoint file
    document: dict[str, Any]
    images: Path

    @property
    def paths(self) -> dict[int, Path]:
        """The image files by id."""
        return {image["id"]: self.images / str(image["file_name"]) for image in self.document["images"]}


def update_stores(plan: StorePlan, is_started: bool) -> tuple[Path, Path]:
    """Make the stores of a run and its skeleton, unless those in the folder fit the data.

    If they do not, a run that ``is_started`` goes on with other data, which is logged as a warning.

    Returns:
        The folder of the validation images, and their COCO keypoint file.

    Raises:
        ConfigError: the skeleton is not a file, or a folder of images is given that the annotations name already.
        DataError: the annotations or the images cannot be used.
    """
    parts = _read_parts(plan)
    if not plan.has_skeleton and plan.skeleton != plan.folder / SKELETON_FILE:
        raise ConfigError("with annotations, model.skeleton is the name of a TOML file, or coco")
    checksum_file = plan.folder / CHECKSUM_FILE
    is_same = checksum_file.exists() and read_input(checksum_file) == _checksum(plan, parts)
    files = ["train.h5", "val.h5"] if plan.val_file else ["train.h5", "val.h5", "train.json", "val.json"]
    if is_same and all((plan.folder / name).exists() for name in files):
        _log.info("The data have not changed: using the stores and the skeleton in %s", plan.folder)
    else:
        if is_started and not is_same:
            _log.warning(
                "The data have changed since the run in %s began: it goes on with the new ones", plan.folder.parent
            )
        _make_stores(plan, parts, is_started)
    val = parts[-1]
    usable = plan.folder / "usable_val.json"
    if not plan.val_file:
        return val.images, plan.folder / "val.json"
    return val.images, usable if usable.exists() else val.path


def _read_parts(plan: StorePlan) -> list[_Part]:
    """The annotations for training and, if they are given, for validation."""
    parts = [_read_part(plan.train_file, "train", plan.images, plan.folder)]
    if plan.val_file is not None:
        images = plan.val_images or (None if is_yolo(plan.val_file) else plan.images)
        parts.append(_read_part(plan.val_file, "val", images, plan.folder))
    elif is_yolo(plan.train_file) and places_of_split(plan.train_file, "val"):
        _log.warning("%s: val is ignored, because it names the images of train", plan.train_file)
    return parts


def _read_part(file: Path, split: str, images: str | Path | None, folder: Path) -> _Part:
    """Read a COCO file, or import another one into the folder."""
    flags: list[object]
    if not is_yolo(file) and recognise(file)[0].name not in ("COCO", "Label Studio"):
        imported = read_annotations(file, images=images, split=split, frames=folder / f"{split}_frames")
        flags = ["--images", images] if images else []
    elif is_yolo(file):
        if images:
            raise ConfigError(f"{file} names the folders of its images; leave out images=DIR and val_images=DIR")
        imported = import_yolo_pose(file, split)
        flags = ["--split", split]
    else:
        content = read_document(file)
        if isinstance(content, dict):
            sections = select_sections(content, file)
            folder = find_images(file, sections["images"]) if images is None else Path(images)
            return _Part(split, file, sections, folder)
        if not (isinstance(content, list) and all(isinstance(task, dict) and "data" in task for task in content)):
            raise DataError(
                f"{file} has no annotations: a file of COCO keypoints has images, annotations and categories, and the "
                "JSON export of Label Studio (not JSON-MIN) is a list of tasks; results are not annotations"
            )
        if not images:
            images = file.parent / "images" if (file.parent / "images").is_dir() else file.parent
        imported = import_label_studio(content, file, images)
        flags = ["--images", images]
    output = folder / f"imported_{split}.json"
    write_output(output, json.dumps(imported.document))
    names = imported.document["categories"][0]["keypoints"]
    if names[:1] == ["keypoint_1"]:
        _log.warning(
            "%s does not name its keypoints: they are called keypoint_1 and so on; list them in kpt_names", file
        )
        flags += ["--keypoints", *names]
    command = command_line("annotations", "import", file, *flags, "--output", output)
    _log.info("Imported %s: %s", describe_counts(imported.document), command)
    for note in imported.notes:
        _log.warning("%s", note)
    return _Part(split, output, imported.document, imported.folder)


def _checksum(plan: StorePlan, parts: Sequence[_Part]) -> bytes:
    """A text that is another one if annotations, sizes or times of images, or the file of the skeleton have changed."""
    digest = hashlib.sha256(plan.exif_frame.encode())
    if plan.skeleton.exists():
        digest.update(sha256_of(plan.skeleton).encode())
    for part in parts:
        digest.update(sha256_of(part.path).encode() + str(part.images.resolve()).encode())
        for image in part.document["images"]:
            path = part.images / str(image.get("file_name"))
            status = path.stat() if path.is_file() else None
            digest.update(repr(status and (status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest().encode()


def _make_stores(plan: StorePlan, parts: Sequence[_Part], is_started: bool) -> None:
    """Check the annotations, draft the skeleton if there is none, split them if they are not, and build the stores."""
    for name in (CHECKSUM_FILE, "usable_train.json", "usable_val.json"):
        (plan.folder / name).unlink(missing_ok=True)
    known = load_skeleton(plan.skeleton) if plan.has_skeleton else None
    checked = [_check(plan, parts[0], known)]
    draft = None if known else _draft(checked[0])
    checked += [_check(plan, part, draft.skeleton if draft else known) for part in parts[1:]]
    trained = _find_trained_images(plan, checked) if is_started else frozenset()
    if len(checked) > 1 and not plan.allow_overlap:
        _refuse_overlap(checked[0], checked[1], trained)
    if draft:  # only now: the names may be corrected in either file
        _write_draft(draft, checked[0], plan.skeleton)
    checksum = _checksum(plan, parts)  # before the builds, during which data may change
    parts_to_build = checked if len(checked) > 1 else _split(checked[0], plan, trained)
    for part in reversed(parts_to_build):  # the store for training last: until then, it says what was trained on
        _build(part, plan)
    write_atomically(plan.folder / CHECKSUM_FILE, checksum)


def _find_trained_images(plan: StorePlan, parts: Sequence[_Part]) -> Collection[Path]:
    """The images in the store on which a run has been training; none if it cannot be read any more."""
    try:
        with open_data_sets(str(plan.folder / "train.h5"), None) as stores:
            return frozenset(find_stored_files(stores, [path for part in parts for path in part.paths.values()]))
    except DataError:
        return frozenset()


def _refuse_overlap(train: _Part, val: _Part, trained: Collection[Path]) -> None:
    """Raise ``DataError`` if images for validation were ``trained`` on, or are copies of those for training."""
    if again := [path for path in val.paths.values() if path in trained]:
        raise DataError(
            f"this run has trained on {pluralize(len(again), 'image')} for validation, such as {again[0]}; begin "
            "another one with checkpoint.path=DIR"
        )
    sides = {(part.split, path): path for part in (train, val) for path in part.paths.values()}
    groups = [
        [path for split, path in group if split == "val"] for group in groups_of_copies(sides) if len(dict(group)) > 1
    ]
    if groups:
        raise DataError(
            f"{pluralize(len(groups), 'image')} for validation, such as {groups[0][0]}: also in the training data; "
            "keep one of the two, or set data.allow_overlap=true to overfit on purpose"
        )


def _check(plan: StorePlan, part: _Part, skeleton: Skeleton | None) -> _Part:
    """Lint annotations and images, and return what can be used; ``DataError`` if there are errors.

    A few images that cannot be used are left out, as a build does; but not all.
    """
    file = AnnotationFile(part.path, part.document, skeleton, part.images, plan.exif_frame)
    findings = find_problems(file)
    unusable = {
        file.image_ids.values[row] for row, check in file.file_checks.items() if check.problem in UNUSABLE_FILES
    }
    if len(unusable) > math.ceil(MAX_UNREADABLE * len(file.images)) or len(unusable) == len(file.images):
        unusable = set()
    if unusable:
        for finding in findings:
            if finding.code in UNUSABLE_FILES.values():
                _log.warning("left out: %s", finding.summary)
        findings = [finding for finding in findings if finding.code not in UNUSABLE_FILES.values()]
    known = ["--skeleton", plan.skeleton] if plan.has_skeleton else []
    lint = command_line("annotations", "lint", part.path, "--images", part.images, *known, *plan.flags)
    if errors := [finding for finding in findings if finding.severity == "error"]:
        for finding in errors:
            _log.error("%s\n  fix: %s [%s]", finding.summary, finding.remedy, finding.code)
        remedy = ""
        if any(finding.can_repair for finding in errors):
            remedy += "; posenet annotations fix repairs what the files determine"
        if any(finding.can_drop for finding in errors):
            remedy += "; posenet annotations fix --drop leaves out single entries that cannot be repaired"
        raise DataError(f"{list_errors(part.path, errors)}; {lint} describes them{remedy}")
    warnings = f"warnings: {', '.join(finding.code for finding in findings)}" if findings else "no warnings"
    _log.info("Checked %s (no errors, %s): %s", part.path, warnings, lint)
    usable = {image["id"] for image in part.document["images"]} - unusable
    return _select(part, usable, plan.folder / f"usable_{part.split}.json") if unusable else part


def _draft(train: _Part) -> SkeletonDraft:
    """Draft the skeleton of annotations without errors; it is COCO's if the keypoints are COCO's."""
    try:
        draft = draft_skeleton(train.path)
    except DataError as error:
        names = [item["name"] for item in train.document["categories"] if item.get("keypoints") and item.get("name")]
        choice = ["--category", names[0]] if len(names) > 1 else []
        remedy = command_line("annotations", "skeleton", train.path, *choice, "--output", "mine.toml")
        raise DataError(f"{error}: {remedy}; then name that with model.skeleton=FILE.toml") from error
    if draft.skeleton.file_names == COCO.file_names:
        return dataclasses.replace(draft, skeleton=COCO, comments={})
    return draft


def _write_draft(draft: SkeletonDraft, train: _Part, output: Path) -> None:
    """Write the drafted skeleton, and log what it has."""
    skeleton = draft.skeleton
    write_output(output, skeleton_to_toml(skeleton, draft.comments))
    if skeleton == COCO:
        command = command_line("annotations", "skeleton", BUILT_IN, "--output", output)
        _log.info("Skeleton: that of COCO: %s", command)
        return
    command = command_line("annotations", "skeleton", train.path, "--output", output)
    pairs = pluralize(len(skeleton.left_right), "pair of left and right", "pairs of left and right")
    counts = pluralize(skeleton.num_keypoints, "keypoint"), pairs, pluralize(skeleton.num_parts, "part")
    _log.info("Drafted a skeleton of %s, %s and %s; correct the file: %s", *counts, command)
    if draft.twins.source == "measured":
        _log.info("%s", draft.twins.message)
    if not skeleton.mirror:
        _log.warning("%s; write left_right in %s, or mirror = true", draft.twins.message, output)
    categories = [item for item in train.document["categories"] if item.get("keypoints")]
    same = [str(item.get("name")) for item in categories]
    if len(same) > 1:
        _log.warning(
            "%s have the same keypoints: they are trained and evaluated as one kind of object", ", ".join(same)
        )


def _select(part: _Part, image_ids: Collection[int], path: Path) -> _Part:
    """Write some of the images and their annotations to a file of their own."""
    document = reduce_document(part.document, image_ids)
    write_output(path, json.dumps(document))
    return part._replace(path=path, document=document)


def _split(part: _Part, plan: StorePlan, trained: Collection[Path]) -> tuple[_Part, _Part]:
    """Split off images for validation; a checksum of its name decides for each.

    They have a person to train on. Copies of one image stay together, and what was ``trained`` on stays in training.
    """
    document = part.document
    with_people = {entry.get("image_id") for entry in document["annotations"] if any(entry.get("keypoints") or [])}
    usable = _images_to_train_on(document, load_skeleton(plan.skeleton)) or with_people  # the build says what they lack
    groups = [group for group in groups_of_copies(part.paths) if usable & set(group)]
    if len(groups) < 2:
        raise DataError(f"{part.path} has keypoints in {pluralize(len(groups), 'image')}; training needs two or more")
    names = {image["id"]: image["file_name"] for image in document["images"]}
    new = [group for group in groups if not any(part.paths[image_id] in trained for image_id in group)]
    ranked = sorted((min(_rank(names[image_id]) for image_id in group), group) for group in new)
    if not ranked:
        raise DataError(f"this run has trained on all images of {part.path}; name others for validation with val=FILE")
    count = max(sum(rank < VALIDATION_SHARE for rank, _ in ranked), 1)
    chosen = set(itertools.chain(*(group for _, group in ranked[: min(count, len(groups) - 1)])))
    train = _select(part, set(names) - chosen, plan.folder / "train.json")
    val = _select(part._replace(split="val"), chosen, plan.folder / "val.json")
    _log.info(
        "Split off %d of %s for validation, by a checksum of their names; --val FILE names your own: %s",
        len(chosen),
        pluralize(len(document["images"]), "image"),
        val.path,
    )
    return train, val


def _rank(name: str) -> float:
    """A number from 0 to 1 that depends on a name alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def _images_to_train_on(document: dict[str, Any], skeleton: Skeleton) -> set[int]:
    """The ids of the images with a person who has enough labelled keypoints and a large enough area."""
    return {
        entry["image_id"]
        for entry in document["annotations"]
        if sum(value > 0 for value in (entry.get("keypoints") or [])[2::3]) >= skeleton.min_labelled_keypoints
        and entry.get("area", MIN_AREA) >= MIN_AREA
        and not entry.get("iscrowd")
    }


def _build(part: _Part, plan: StorePlan) -> None:
    """Build the store of a split."""
    output = plan.folder / f"{part.split}.h5"
    report = build_store(
        part.images,
        part.path,
        output,
        overwrite=True,
        skeleton=load_skeleton(plan.skeleton),
        exif_frame=plan.exif_frame,
        max_side=MAX_SIDE,
        background=True,
    )
    words: list[object] = ["build-hdf5", "--images", part.images, "--annotations", part.path, "--output", output]
    words += ["--max-side", MAX_SIDE, "--background", "--skeleton", plan.skeleton, *plan.flags]
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
    _log.info("Built %s of %s with %s%s: %s", output.name, *counts, text, command_line(*words))
    for line in report.skipped:
        _log.warning("left out: %s", line)
