"""The stores of a run, from its annotations: they are read in the normal form and split, their skeleton is drafted.

Every step calls the public function of a tool and logs one line. Importing this module does not import PyTorch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posenet.annotations.adjustments import MAX_LINE
from posenet.annotations.coco import AnnotationFile, describe_counts, read_document
from posenet.annotations.copies import groups_of_copies
from posenet.annotations.find_annotations import is_yolo
from posenet.annotations.main_persons import describe_others, select_main_persons
from posenet.annotations.people import people_of
from posenet.annotations.reader import read_annotation_file
from posenet.annotations.skeleton_draft import COMMENTS, SkeletonDraft, draft_skeleton
from posenet.data.build import build_store
from posenet.data.inspection import find_stored_files
from posenet.data.store_list import count_background, open_data_sets
from posenet.errors import ConfigError, DataError
from posenet.files import read_input, sha256_of, write_atomically
from posenet.messages import command_line, pluralize
from posenet.settings import ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton import list_names
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml

VALIDATION_SHARE = 0.1
"""Share of the images that is split off for validation."""
MAX_SIDE = 1536
"""Images with a longer side, in pixels, are stored smaller: three times the largest input of an experiment."""
SKELETON_FILE = "skeleton.toml"
"""Where the skeleton is drafted, if none is given."""
WARNINGS_FILE = "warnings.txt"
"""What was left out of the stores, and what may be wrong with their annotations, one line each."""
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


class _Source(NamedTuple):
    """The annotations of one split, as they are."""

    split: str  # train or val
    path: Path
    document: dict[str, Any]
    images: Path


class _Part(NamedTuple):
    """The annotations of one store, in the normal form."""

    split: str
    file: AnnotationFile
    images: Path

    @property
    def paths(self) -> dict[int, Path]:
        """The image files by id."""
        return {image.id: self.images / image.file_name for image in self.file.images}


def update_stores(plan: StorePlan, is_started: bool) -> tuple[Path, tuple[str, ...]]:
    """Make the stores of a run and its skeleton, unless those in the folder fit the data.

    If they do not, a run that ``is_started`` goes on with other data, which is logged as a warning.

    Returns:
        The folder of the validation images; and what was left out, and what may be wrong: one line each.

    Raises:
        ConfigError: the skeleton is not a file, or a folder of images is given that the annotations name already.
        DataError: the annotations or the images cannot be used.
    """
    sources = _read_sources(plan)
    has_skeleton = str(plan.skeleton) == BUILT_IN or plan.skeleton.exists()
    if not has_skeleton and plan.skeleton != plan.folder / SKELETON_FILE:
        raise ConfigError("with annotations, model.skeleton is the name of a TOML file, or coco")
    files = ("train.h5", "val.h5", "train.json", "val.json", WARNINGS_FILE, CHECKSUM_FILE)
    checksum_file = plan.folder / CHECKSUM_FILE
    is_same = checksum_file.exists() and read_input(checksum_file) == _checksum(plan, sources)
    if is_same and all((plan.folder / name).exists() for name in files):
        _log.info("The data have not changed: using the stores and the skeleton in %s", plan.folder)
    else:
        if is_started and not is_same:
            _log.warning("The data have changed since the run in %s began: it goes on with these", plan.folder.parent)
        checksum_file.unlink(missing_ok=True)
        _make_stores(plan, sources, load_skeleton(plan.skeleton) if has_skeleton else None, is_started)
    return sources[-1].images, tuple(read_input(plan.folder / WARNINGS_FILE).decode().splitlines())


def _read_sources(plan: StorePlan) -> list[_Source]:
    """The annotations for training and, if they are given, for validation."""
    sources = [_read_source(plan.train_file, "train", plan.images, plan.folder)]
    if is_yolo(plan.train_file) and plan.val_file in (None, plan.train_file):
        from posenet.annotations.importing.yolo_pose import MissingPlaceError, places_of_split

        try:
            if plan.val_file is not None:
                sources.append(_read_source(plan.val_file, "val", plan.val_images, plan.folder))
            elif places_of_split(plan.train_file, "val"):
                _log.warning("%s: val is ignored, because it names the images of train", plan.train_file)
        except MissingPlaceError as error:
            _log.warning("%s: a part of train is split off for validation", error)
    elif plan.val_file is not None:
        images = plan.val_images or (None if is_yolo(plan.val_file) else plan.images)
        sources.append(_read_source(plan.val_file, "val", images, plan.folder))
    return sources


def _read_source(file: Path, split: str, images: str | Path | None, folder: Path) -> _Source:
    """Read annotations in any format as a COCO-shaped document, which is written into the folder."""
    try:
        from posenet.annotations.importing.formats import read_annotations
    except ModuleNotFoundError:  # a part of the package that may be left out: then only COCO's own format is read
        document, image_folder = read_document(file), Path(images or file.parent)
    else:
        frames = folder / f"{split}_frames"
        part = split if is_yolo(file) else None
        document, image_folder, notes = read_annotations(file, images=images, split=part, frames=frames)
        for note in notes:
            line = f"{file.name}: {note}"
            _log.warning("%s", line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 4]} ...")
    output = folder / f"imported_{split}.json"
    write_atomically(output, json.dumps(document).encode())
    return _Source(split, output, document, image_folder)


def _checksum(plan: StorePlan, sources: Sequence[_Source]) -> bytes:
    """A text that is another one if annotations, sizes or times of images, or the file of the skeleton have changed."""
    digest = hashlib.sha256(plan.exif_frame.encode())
    if plan.skeleton.exists():
        digest.update(sha256_of(plan.skeleton).encode())
    for source in sources:
        digest.update(sha256_of(source.path).encode() + str(source.images.resolve()).encode())
        for image in source.document["images"]:
            path = source.images / str(image.get("file_name"))
            status = path.stat() if path.is_file() else None
            digest.update(repr(status and (status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest().encode()


def _make_stores(plan: StorePlan, sources: Sequence[_Source], known: Skeleton | None, is_started: bool) -> None:
    """Read the annotations, draft the skeleton if there is none, split them if they are not, and build the stores."""
    warnings: list[str] = []
    train = _read(plan, sources[0], known, warnings)
    draft = None if known else _draft(train.file)
    skeleton = draft.skeleton if draft else known
    if draft and len(train.file.groups_of_names()) > 1:  # some may be the skeleton's, in another order
        content, images = train.file.document, train.images
        again = read_annotation_file(
            sources[0].path, skeleton, folder=images, exif_frame=plan.exif_frame, document=content
        )
        train = train._replace(file=again)
    parts = [train, *(_read(plan, source, skeleton, warnings) for source in sources[1:])]
    trained = _find_trained_images(plan, parts) if is_started else frozenset()
    if len(parts) > 1 and not plan.allow_overlap:
        _refuse_overlap(parts[0], parts[1], trained)
    if draft:  # only now: the names may be corrected in either file
        _write_draft(draft, plan.skeleton, warnings)
    checksum = _checksum(plan, sources)  # before the builds, during which data may change
    skeleton = load_skeleton(plan.skeleton)
    parts = parts if len(parts) > 1 else _split(train, skeleton, plan.folder, trained)
    for part in reversed(parts):  # the store for training last: until then, it says what was trained on
        _build(part, plan.folder, skeleton, warnings)
    write_atomically(plan.folder / WARNINGS_FILE, "".join(f"{line}\n" for line in warnings).encode())
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
    groups = [dict(group) for group in groups_of_copies(sides)]
    if copies := [group["val"] for group in groups if len(group) > 1]:
        raise DataError(
            f"{pluralize(len(copies), 'image')} for validation, such as {copies[0]}: also in the training data; "
            "keep one of the two, or set data.allow_overlap=true to overfit on purpose"
        )


def _read(plan: StorePlan, source: _Source, skeleton: Skeleton | None, warnings: list[str]) -> _Part:
    """Read annotations in the normal form, and log what that took; ``DataError`` if they contradict themselves."""
    file = read_annotation_file(
        source.path,
        skeleton,
        folder=source.images,
        exif_frame=plan.exif_frame,
        opens_images=True,
        measures_twins=skeleton is not None and source.split == "train",
        document=source.document,
    )
    said = file.adjustments
    for adjustment in said.sorted():
        level = {"contradiction": logging.ERROR, "derived": logging.INFO}.get(adjustment.kind, logging.WARNING)
        _log.log(level, "%s", adjustment)
    if said.contradictions:
        codes = ", ".join(adjustment.code for adjustment in said.contradictions)
        lint = command_line("annotations", "lint", source.path, "--images", source.images)
        raise DataError(f"{source.path} contradicts itself ({codes}); {lint} lists where")
    warnings += [f"{source.split}: {line}" for line in said.report_lines()]
    _log.info("Read %s: %s", source.path.name, describe_counts(file.document))
    return _Part(source.split, file, source.images)


def _draft(file: AnnotationFile) -> SkeletonDraft:
    """Draft the skeleton of the category with most annotations; it is COCO's if the keypoints are COCO's."""
    counts = Counter(file.columns.category_rows.tolist())
    ranked = [file.categories.parsed[row] for row, _ in counts.most_common() if file.categories.parsed[row].keypoints]
    others = [category.name for category in ranked if category.keypoints != ranked[0].keypoints]
    try:
        draft = draft_skeleton(file, ranked[0].name if others else None)
    except DataError as error:
        remedy = command_line("annotations", "skeleton", file.path, "--output", "mine.toml")
        raise DataError(f"{error}: {remedy}; then name that with model.skeleton=FILE.toml") from error
    if others:
        text = "Only %s is trained, not %s, which have other keypoints; to choose: annotations skeleton --category NAME"
        _log.warning(text, ranked[0].name, list_names(list(dict.fromkeys(others))))
    if draft.skeleton.file_names == COCO.file_names:
        return draft._replace(skeleton=dataclasses.replace(COCO, category_id=draft.skeleton.category_id))
    return draft


def _write_draft(draft: SkeletonDraft, output: Path, warnings: list[str]) -> None:
    skeleton = draft.skeleton
    is_coco = skeleton == COCO
    write_atomically(output, skeleton_to_toml(skeleton, {} if is_coco else COMMENTS).encode())
    if is_coco:
        _log.info("Skeleton: that of COCO")
        return
    counts = pluralize(skeleton.num_keypoints, "keypoint"), pluralize(skeleton.num_parts, "part")
    if skeleton.mirror:
        _log.info("Drafted %s: %s, %s, %s", output, *counts, draft.twins.message)
    else:
        warnings.append(f"{draft.twins.message}; write left_right in {output}")
        _log.warning("%s", warnings[-1])


def _split(part: _Part, skeleton: Skeleton, folder: Path, trained: Collection[Path]) -> list[_Part]:
    """Split off images for validation; a checksum of its name decides for each.

    They have a person to train on. Copies of one image stay together, and what was ``trained`` on stays in training.
    """
    file, paths = part.file, part.paths
    usable = _images_to_train_on(file, skeleton)
    groups = [group for group in groups_of_copies(paths) if usable & set(group)]
    if len(groups) < 2:
        raise DataError(f"{file.path} has keypoints in {pluralize(len(groups), 'image')}; training needs two or more")
    names = {image.id: image.file_name for image in file.images}
    new = [group for group in groups if not any(paths[image_id] in trained for image_id in group)]
    ranked = sorted((min(_rank(names[image_id]) for image_id in group), group) for group in new)
    if not ranked:
        raise DataError(f"this run has trained on all images of {file.path}; name others to validate on: --val FILE")
    count = max(sum(rank < VALIDATION_SHARE for rank, _ in ranked), 1)
    chosen = set(itertools.chain(*(group for _, group in ranked[: min(count, len(groups) - 1)])))
    text = "Split off %d of %s for validation, by a checksum of their names; --val FILE names your own"
    _log.info(text, len(chosen), pluralize(len(names), "image"))
    is_chosen = np.array([image_id in chosen for image_id in names])
    return [
        part._replace(split="train", file=file.select(~is_chosen)),
        part._replace(split="val", file=file.select(is_chosen)),
    ]


def _rank(name: str) -> float:
    """A number from 0 to 1 that depends on a name alone."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def _images_to_train_on(file: AnnotationFile, skeleton: Skeleton) -> set[int]:
    """The ids of the images with a main person; where there are none, of all with labelled keypoints, so that the build
    says what they lack."""
    people_of_images = people_of(file, skeleton).people
    minimum = skeleton.min_labelled_keypoints
    mains = {number for number, people in people_of_images.items() if select_main_persons(people, minimum)}
    return mains or {number for number, people in people_of_images.items() if people.num_labelled.any()}


def _build(part: _Part, folder: Path, skeleton: Skeleton, warnings: list[str]) -> None:
    path = folder / f"{part.split}.json"
    file = dataclasses.replace(part.file, path=path)
    write_atomically(path, json.dumps(file.document).encode())
    report = build_store(
        part.images,
        people_of(file, skeleton),
        path.with_suffix(".h5"),
        overwrite=True,
        max_side=MAX_SIDE,
        background=True,
    )
    store = report.store
    counts = [pluralize(store.num_images, "image"), store.skeleton.count(store.num_people)]
    counts += [pluralize(len(store), "sample")]
    counts += [f"{report.num_shrunk} made smaller"] if report.num_shrunk else []
    _log.info("Built %s.h5: %s", part.split, ", ".join(counts))
    lines = []
    if num_background := count_background(store):
        text = store.skeleton.name_objects("images without annotations count as images without people")
        lines.append(f"{num_background} {text}; if they are not: --set data.background=0")
    if report.others:
        objects = store.skeleton.count(report.others.total())
        lines.append(f"{objects} without a sample of their own: {describe_others(report.others)}")
    if report.num_without_main_person:
        lines.append(f"{pluralize(report.num_without_main_person, 'image')} left out, without a sample")
    lines += [f"left out: {line}" for line in report.skipped]
    for line in lines:
        _log.info("%s.h5: %s", part.split, line)
    warnings += [f"{part.split}: {line}" for line in lines]
