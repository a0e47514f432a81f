"""From annotations and images to stores: one store (``build_store``), or those of a run with its skeleton.

Every step of ``update_stores`` calls the public function of a tool and logs one line. Importing this module does not
import PyTorch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import math
import os
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from posenet.annotations.adjustments import MAX_LINE, Adjustments
from posenet.annotations.coco import AnnotationFile, CocoImage, describe_counts, read_document
from posenet.annotations.find_annotations import is_yolo
from posenet.annotations.image_files import groups_of_copies
from posenet.annotations.outlines import encode_mask
from posenet.annotations.people import (
    CLEAR_AREA,
    MIN_AREA,
    CocoDataset,
    count_others,
    describe_others,
    people_of,
    person_masks,
    read_dataset,
    scale_people,
    select_main_persons,
)
from posenet.annotations.reader import read_annotation_file
from posenet.annotations.skeleton_draft import COMMENTS, draft_skeleton
from posenet.data.store import (
    JPEG_QUALITY,
    NO_PERSON,
    PERSON_TYPE,
    OriginalRow,
    Record,
    Store,
    check_store_output,
    open_store_writer,
)
from posenet.data.store_list import count_background, find_stored_files, open_data_sets
from posenet.errors import ConfigError, DataError
from posenet.files import read_input, resolve_link, sha256_of, write_atomically
from posenet.images import (
    check_image,
    check_proportions,
    decode_checked_image,
    find_images,
    image_errors,
    read_image_file,
    require_image_folder,
)
from posenet.messages import command_line, pluralize
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton import list_names
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml
from posenet.threads import map_in_threads, usable_cores

MAX_ID_DIGITS = 18
"""Most digits of a file name that is an image id: all such numbers have 64 bits."""
MAX_UNREADABLE = 0.05
"""Default share of unreadable images above which a build fails."""
VALIDATION_SHARE = 0.1
"""Share of the images that is split off for validation."""
MAX_STORED_SIDE = 1536
"""Images of a run with a longer side, in pixels, are stored smaller: three times the largest input of an experiment."""
SKELETON_FILE = "skeleton.toml"
"""Where the skeleton is drafted, if none is given."""
WARNINGS_FILE = "warnings.txt"
"""What was left out of the stores, and what may be wrong with their annotations, one line each."""
CHECKSUM_FILE = "checksum.txt"
"""File with the checksum of the data from which the stores beside it are built; it is written last."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BuildReport:
    """The result of a build."""

    store: Store  # closed; its tables remain
    num_without_main_person: int  # requested images without a main person
    others: Counter[str]  # people of the requested images on whom no sample is centred, by reason
    adjustments: Adjustments  # what reading the annotations did
    skipped: tuple[str, ...]  # one line for every unreadable image
    num_resized: int  # stored images of another size than annotated, to which their annotations are scaled
    num_empty: int  # requested images without any annotation that are not stored
    num_shrunk: int  # stored images that were made smaller


class _Entry(NamedTuple):
    """What the store gets of an image."""

    record: Record
    main_rows: list[int]
    original: OriginalRow
    is_resized: bool  # the file, since it was annotated
    is_shrunk: bool


def build_store(
    images: str | Path,
    annotations: str | Path | CocoDataset | None,
    output: str | Path,
    *,
    image_ids: Collection[int] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    max_unreadable: float = MAX_UNREADABLE,
    overwrite: bool = False,
    skeleton: Skeleton | str | Path = COCO,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    max_side: int = 0,
    background: bool = False,
    progress: bool = True,
) -> BuildReport:
    """Write every image that has a main person to ``output``, in the order of the annotation file.

    Args:
        images: folder of the images. Where they were resized after they were annotated, the annotations are scaled to
            the size of the files.
        annotations: COCO keypoint JSON for ``skeleton``, or people as ``people_of`` returns them, with their own
            skeleton. None stores all images of the folder without annotations, in the order of their names and as
            viewers display them: as ``background``, or for training with a teacher.
        image_ids, limit: store only these images, and only the first ``limit`` of them; None stores all.
        workers: threads; None means one per usable core. The bytes of the store do not depend on it.
        max_unreadable: share of the images, rounded up to whole images, that may be missing, damaged or of other
            proportions than annotated. They are skipped and reported.
        overwrite: replace an existing store when the new one is complete.
        skeleton: that of the annotation file, or the path of its own file.
        exif_frame: see ``read_annotation_file``; images without annotations are stored as displayed.
        max_side: images with a longer side than this many pixels are stored smaller and upright, with their
            annotations: as JPEG of the quality ``JPEG_QUALITY``. They stay so large that no main person gets
            smaller than one may be. 0 stores all images as they are.
        background: also store the images without any annotation, as images that show nobody.

    Raises:
        DataError: the input or the output cannot be used, or too many images are unreadable. No store is written.
    """
    skeleton = load_skeleton(skeleton)
    if max_side < 0:
        raise DataError(f"max_side is {max_side}; give the longest side in pixels, or 0 to keep all sizes")
    output, folder = Path(output), Path(images)
    # Before the annotations are read.
    check_store_output(resolve_link(output), overwrite, [annotations] if isinstance(annotations, (str, Path)) else [])
    require_image_folder(folder)
    if annotations is None:
        dataset = _list_unlabelled(folder, background, skeleton)
    elif isinstance(annotations, CocoDataset):
        dataset = annotations
    else:
        dataset = read_dataset(annotations, skeleton, folder, exif_frame)
    skeleton = dataset.skeleton
    minimum = skeleton.min_labelled_keypoints
    requested = dataset.images
    if image_ids is not None:
        wanted = set(image_ids)
        if unknown := wanted - {image.id for image in requested}:
            raise DataError(f"{dataset.path} has no image {min(unknown)} ({len(unknown)} unknown); correct the ids")
        requested = [image for image in requested if image.id in wanted]
    people_of_requested = [dataset.people[image.id] for image in requested if image.id in dataset.people]
    others = sum((count_others(people, minimum) for people in people_of_requested), start=Counter[str]())
    empty = dataset.background & {image.id for image in requested}
    suitable = [
        image
        for image in requested
        if image.id not in dataset.people  # who is in it is not known
        or (background and image.id in empty)
        or select_main_persons(dataset.people[image.id], minimum)
    ]
    shows_nobody = background and len(empty) == len(requested)
    if not shows_nobody and all(image.id in empty for image in suitable):
        raise DataError(
            f"no {skeleton.category} in {dataset.path} has {minimum} labelled keypoints and an area of {MIN_AREA} "
            f"square pixels, as a sample needs: {describe_others(others) or 'there is none'}; posenet annotations lint "
            "checks it, and --background stores images without annotations"
        )
    chosen = suitable[:limit]

    def prepare(image: CocoImage) -> _Entry | str:
        """The entry of an image, or the reason why it cannot be used."""
        path = folder / image.file_name
        try:
            with image_errors(path):
                return _read_entry(path, image, dataset, max_side)
        except DataError as error:
            return f"{error} (image {image.id})"

    too_small = num_resized = num_shrunk = 0
    skipped: list[str] = []
    paths = [folder / image.file_name for image in chosen]
    num_bytes = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    max_skipped = math.ceil(max_unreadable * len(chosen))
    workers = workers or usable_cores()  # threads, because reading and decoding release Python's global lock
    with (
        open_store_writer(output, num_bytes, skeleton, dataset.path, overwrite, max_side) as writer,
        contextlib.closing(map_in_threads(prepare, chosen, workers=workers, ahead=4 * workers)) as results,
    ):
        for image, entry in zip(chosen, progress_bar(results, "build", len(chosen), disable=not progress)):
            if isinstance(entry, str):
                skipped.append(entry)
                if len(skipped) > max_skipped:
                    raise DataError(
                        f"more than {max_skipped} of {len(chosen)} images cannot be read, the most that max_unreadable "
                        "allows; check the folder of the images, restore the files, or raise it (posenet annotations "
                        f"lint lists all problems): {'; '.join(skipped[:3])}"
                    )
            elif not entry.main_rows and image.id not in empty:  # in a file that is smaller than annotated
                too_small += 1
            else:
                writer.add(entry.record, entry.main_rows, entry.original)
                num_resized += entry.is_resized
                num_shrunk += entry.is_shrunk
    with Store(output, skeleton) as store:
        pass
    return BuildReport(
        store=store,
        num_without_main_person=len(requested) - len(suitable) + too_small,
        others=others,
        adjustments=dataset.adjustments,
        skipped=tuple(skipped),
        num_resized=num_resized,
        num_empty=0 if background else len(empty),
        num_shrunk=num_shrunk,
    )


def _list_unlabelled(folder: Path, background: bool, skeleton: Skeleton) -> CocoDataset:
    """The images of a folder, of people who are not known. Their sizes are not known yet: 0.

    An image id is the number that is the name of the file, as in COCO, if all names are numbers; else the images are
    numbered from 1 in the order of their names.
    """
    names = [path.relative_to(folder) for path in find_images([folder])]
    stems = [name.stem for name in names]
    ids = [int(stem) for stem in stems if stem.isascii() and stem.isdecimal() and len(stem) <= MAX_ID_DIGITS]
    if len(set(ids)) < len(names):
        ids = list(range(1, len(names) + 1))
    images = [CocoImage(number, str(name), height=0, width=0) for number, name in zip(ids, names)]
    return CocoDataset(folder, skeleton, images, {}, frozenset(ids if background else ()), Adjustments())


def _read_entry(path: Path, image: CocoImage, dataset: CocoDataset, max_side: int) -> _Entry:
    """Read and check an image file, and make its record; ``OSError`` or ``ValueError`` if it cannot be used."""
    data = read_image_file(path)
    header = check_image(data)
    original = OriginalRow(len(data), zlib.crc32(data.data), header.orientation)
    orientation = header.orientation
    size = original_size = header.displayed_size
    annotated_size = (image.height, image.width)
    people = dataset.people.get(image.id)
    mains: list[int] = []
    if people is not None:
        check_proportions(path, size, annotated_size)
        people = scale_people(people, annotated_size, size)
        mains = select_main_persons(people, dataset.skeleton.min_labelled_keypoints)
    zoom = _zoom_to_store(size, max_side, people.areas[mains] if people else np.zeros(0))
    if zoom < 1:
        size = max(1, round(size[0] * zoom)), max(1, round(size[1] * zoom))
        pixels = decode_checked_image(data, *original_size, 1, orientation)
        pixels = cv2.resize(pixels, size[::-1], interpolation=cv2.INTER_AREA)
        data = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])[1]
        orientation = 1
    if people is None:  # it shows nobody, or the loss of labels counts nowhere
        is_background = image.id in dataset.background
        joints = np.zeros((0, dataset.skeleton.num_keypoints, 3), np.float32)
        table = np.zeros(0, PERSON_TYPE)
        person_mask = np.zeros(size, np.uint8)
        mask_miss = np.full(size, is_background, np.uint8)
        main_rows = [] if is_background else [NO_PERSON]
    else:
        people = scale_people(people, original_size, size)
        rows = np.flatnonzero(people.is_labelled)
        joints = people.keypoints[rows]
        table = np.zeros(len(rows), PERSON_TYPE)
        table["annotation_id"] = people.ids[rows]
        table["box"] = people.boxes[rows]
        table["area"] = people.areas[rows]
        person_mask, mask_miss = person_masks(people, *size)
        main_rows = np.searchsorted(rows, mains).tolist()  # main persons are labelled, so each is one of ``rows``
    record = Record(
        source=path,
        image_id=image.id,
        file_name=image.file_name,
        height=size[0],
        width=size[1],
        orientation=orientation,
        image_bytes=data,
        joints=joints,
        person_mask=encode_mask(person_mask),
        mask_miss=encode_mask(mask_miss),
        people=table,
    )
    is_resized = people is not None and original_size != annotated_size
    return _Entry(record, main_rows, original, is_resized, size != original_size)


def _zoom_to_store(size: tuple[int, int], max_side: int, areas: np.ndarray) -> float:
    """The factor by which an image is made smaller: to ``max_side`` if that is not 0, but not so small that one of the
    ``areas`` of its main persons gets too small for one."""
    longer = max(size)
    if not 0 < max_side < longer:
        return 1.0
    # Who is clear stays so, and who is small can still be trained on.
    smallest = np.where(areas >= CLEAR_AREA, CLEAR_AREA, MIN_AREA)
    return float(np.sqrt(smallest / areas).max(initial=max_side / longer))


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
    skeleton = draft or known
    if draft and len(train.file.groups_of_names()) > 1:  # some may be the skeleton's, in another order
        content, images = train.file.document, train.images
        again = read_annotation_file(
            sources[0].path, skeleton, folder=images, exif_frame=plan.exif_frame, document=content
        )
        train = train._replace(file=again)
    parts = [train, *(_read(plan, source, skeleton, warnings) for source in sources[1:])]
    trained: Collection[Path] = ()
    if is_started:
        with contextlib.suppress(DataError), open_data_sets(str(plan.folder / "train.h5"), None) as stores:
            trained = find_stored_files(stores, [path for part in parts for path in part.paths.values()])
    trained = frozenset(trained)
    if len(parts) > 1 and not plan.allow_overlap:
        _refuse_overlap(parts[0], parts[1], trained)
    if draft:  # only now: the names may be corrected in either file
        _write_draft(draft, plan.skeleton)
    checksum = _checksum(plan, sources)  # before the builds, during which data may change
    skeleton = load_skeleton(plan.skeleton)
    parts = parts if len(parts) > 1 else _split(train, skeleton, trained)
    for part in reversed(parts):  # the store for training last: until then, it says what was trained on
        _build(part, plan.folder, skeleton, warnings)
    write_atomically(plan.folder / WARNINGS_FILE, "".join(f"{line}\n" for line in warnings).encode())
    write_atomically(plan.folder / CHECKSUM_FILE, checksum)


def _refuse_overlap(train: _Part, val: _Part, trained: Collection[Path]) -> None:
    """Raise ``DataError`` if images for validation were ``trained`` on, or are copies of those for training."""
    if again := [path for path in val.paths.values() if path in trained]:
        raise DataError(
            f"this run has trained on {pluralize(len(again), 'image')} for validation, such as {again[0]}; begin "
            "another one with --set checkpoint.path=DIR"
        )
    sides = {(part.split, path): path for part in (train, val) for path in part.paths.values()}
    groups = [dict(group) for group in groups_of_copies(sides)]
    if copies := [group["val"] for group in groups if len(group) > 1]:
        raise DataError(
            f"{pluralize(len(copies), 'image')} for validation, such as {copies[0]}: also in the training data; "
            "keep one of the two, or give --set data.allow_overlap=true to overfit on purpose"
        )


def _read(plan: StorePlan, source: _Source, skeleton: Skeleton | None, warnings: list[str]) -> _Part:
    """Read annotations in the normal form, and log what that took; ``DataError`` if they contradict themselves."""
    file = read_annotation_file(
        source.path,
        skeleton,
        folder=source.images,
        exif_frame=plan.exif_frame,
        opens_images=True,
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


def _draft(file: AnnotationFile) -> Skeleton:
    """Draft the skeleton of the category with most annotations; it is COCO's if the keypoints are COCO's."""
    counts = Counter(file.columns.category_rows.tolist())
    ranked = [file.categories.parsed[row] for row, _ in counts.most_common() if file.categories.parsed[row].keypoints]
    others = [category.name for category in ranked if category.keypoints != ranked[0].keypoints]
    try:
        draft = draft_skeleton(file, ranked[0].name if others else None)
    except DataError as error:
        remedy = command_line("annotations", "skeleton", file.path, "--output", "mine.toml")
        raise DataError(f"{error}: {remedy}; then name that with --set model.skeleton=FILE.toml") from error
    if others:
        text = "Only %s is trained, not %s, which have other keypoints; to choose: annotations skeleton --category NAME"
        _log.warning(text, ranked[0].name, list_names(list(dict.fromkeys(others))))
    if draft.file_names == COCO.file_names:
        return dataclasses.replace(COCO, category_id=draft.category_id)
    return draft


def _write_draft(skeleton: Skeleton, output: Path) -> None:
    is_coco = skeleton == COCO
    write_atomically(output, skeleton_to_toml(skeleton, {} if is_coco else COMMENTS).encode())
    if is_coco:
        _log.info("Skeleton: that of COCO")
    else:
        counts = pluralize(skeleton.num_keypoints, "keypoint"), pluralize(skeleton.num_parts, "part")
        pairs = pluralize(len(skeleton.left_right), "pair of left and right", "pairs of left and right")
        _log.info("Drafted %s: %s, %s, %s", output, *counts, pairs)


def _split(part: _Part, skeleton: Skeleton, trained: Collection[Path]) -> list[_Part]:
    """Split off images for validation; a checksum of its name decides for each, so that most stay where they are when
    some are added.

    They have a person to train on. Copies of one image stay together, and what was ``trained`` on stays in training.
    """
    file, paths = part.file, part.paths
    people = people_of(file, skeleton).people
    usable = {number for number in people if select_main_persons(people[number], skeleton.min_labelled_keypoints)}
    # Where no image has a main person, the build says what those with labelled keypoints lack.
    usable = usable or {number for number in people if people[number].num_labelled.any()}
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


def _build(part: _Part, folder: Path, skeleton: Skeleton, warnings: list[str]) -> None:
    path = folder / f"{part.split}.json"
    file = dataclasses.replace(part.file, path=path)
    write_atomically(path, json.dumps(file.document).encode())
    output = path.with_suffix(".h5")
    people = people_of(file, skeleton)
    report = build_store(part.images, people, output, overwrite=True, max_side=MAX_STORED_SIDE, background=True)
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
