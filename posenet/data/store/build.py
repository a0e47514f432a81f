"""Builds a store from a folder of images, with a COCO keypoint file or without annotations.

Reading, decoding and hashing release Python's global lock, so threads can use all cores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.annotations.coco_dataset import CocoDataset, read_annotations
from posenet.annotations.coco_file import CocoImage
from posenet.annotations.main_persons import select_main_persons
from posenet.annotations.masks import person_masks
from posenet.data.store.image_check import read_checked_image
from posenet.data.store.reader import StoreSummary
from posenet.data.store.record import Record
from posenet.data.store.shards import find_other_shards, open_store, shard_paths
from posenet.data.store.writer import ShardedStoreWriter, StoreWriter, check_output
from posenet.devices.background import map_in_background
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.images.image_files import find_images, read_header
from posenet.images.orientation import AnnotatedFrame, count_frames
from posenet.progress import progress_bar
from posenet.settings import DataConfig, ExifFrame
from posenet.skeleton import COCO, Skeleton

MAX_ID_DIGITS = 18
"""Most digits of a file name that is an image id: all such numbers have 64 bits."""
MAX_UNREADABLE = 0.05
"""Default share of unreadable images above which a build fails."""


@dataclass(frozen=True)
class BuildReport:
    """The result of a build."""

    summary: StoreSummary
    num_crowds: int
    """Crowd regions in the stored images."""
    num_without_outline: int
    """People and crowds in the stored images without a usable outline; their box is the mask."""
    num_without_main_person: int
    """Requested images without a main person."""
    skipped: tuple[str, ...]
    """One line for every unreadable image."""
    frames: dict[str, int]
    """Number of stored images with an EXIF orientation, by the frame of their annotations and what decided it."""
    removed: tuple[Path, ...]
    """Shards of an earlier build in another number of shards."""
    seconds: float


class _PreparedImage(NamedTuple):
    """An image that is ready to be written."""

    record: Record
    main_rows: list[int]
    frame: AnnotatedFrame


class _WrittenImages(NamedTuple):
    """The outcome of writing images."""

    skipped: dict[int, str]
    """The reasons for the skipped images, by image id."""
    frames: list[AnnotatedFrame]
    """The frames of the others."""


class _UnreadableImage(NamedTuple):
    """An image that cannot be read; ``reason`` also names the image."""

    image_id: int
    reason: str


def build_store(
    images: str | Path,
    annotations: str | Path | None,
    output: str | Path,
    *,
    shards: int = 0,
    image_ids: Collection[int] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    max_unreadable: float = MAX_UNREADABLE,
    overwrite: bool = False,
    skeleton: Skeleton = COCO,
    exif_frame: ExifFrame = DataConfig.exif_frame,
    progress: bool = True,
) -> BuildReport:
    """Write every image that has a main person to ``output``, in the order of the annotation file.

    Args:
        images: folder of the images.
        annotations: COCO keypoint JSON for ``skeleton``. None stores all images of the folder without annotations, in
            the order of their names and as viewers display them, for training with a teacher.
        shards: write this many files, with the names of ``shard_paths``, instead of the single file ``output``.
        image_ids: store only these images; None stores all.
        limit: store only the first ``limit`` of these images.
        workers: threads; None means one per usable core. The bytes of the store do not depend on it.
        max_unreadable: share of the images, rounded up to whole images, that may be missing, damaged or of another size
            than annotated. They are skipped and reported.
        overwrite: replace an existing store when the new one is complete. This removes shards of an earlier build in
            another number of shards.
        exif_frame: frame of the annotations where an image's EXIF orientation and size leave it open; see
            ``find_annotated_frame``.
        progress: whether to show a progress bar.

    Raises:
        DataError: the input or the output cannot be used, or too many images are unreadable. No store is written.
    """
    start = time.perf_counter()
    if "*" in str(output):
        raise DataError(f"{output} is a pattern; give the name of one file, such as train.h5")
    paths = shard_paths(Path(output), shards) if shards else [Path(output)]
    replaced = find_other_shards(Path(output), shards) if shards else []
    for path in (*paths, *replaced):
        check_output(path, overwrite)
    if not Path(images).is_dir():
        raise DataError(f"image folder {images} does not exist; give the folder that contains the images")
    prepare: Callable[[CocoImage], _PreparedImage | _UnreadableImage]
    if annotations is None:
        dataset = _list_unlabelled(Path(images))
        requested = _select_images(dataset, image_ids)
        suitable = requested
        prepare = partial(_prepare_unlabelled, Path(images), skeleton.num_keypoints)
    else:
        dataset = read_annotations(annotations, skeleton)
        requested = _select_images(dataset, image_ids)
        min_labelled = skeleton.min_labelled_keypoints
        suitable = [image for image in requested if select_main_persons(dataset.people[image.id], min_labelled)]
        prepare = partial(_prepare_image, Path(images), dataset, min_labelled, exif_frame)
    chosen = suitable[:limit]
    if shards > len(chosen):
        raise DataError(f"{len(chosen)} images cannot fill {shards} shards; use fewer --shards")
    writer: StoreWriter | ShardedStoreWriter
    if shards:
        writer = ShardedStoreWriter(paths, [image.id for image in chosen], skeleton, dataset.path, overwrite)
    else:
        writer = StoreWriter(output, skeleton, dataset.path, overwrite)
    with writer:
        skipped, frames = _write_images(
            writer, chosen, prepare, workers, math.ceil(max_unreadable * len(chosen)), progress
        )
    for path in replaced:
        path.unlink(missing_ok=True)
    stored_people = [person for image in chosen if image.id not in skipped for person in dataset.people[image.id]]
    with open_store([str(path) for path in paths], skeleton) as store:
        summary = store.summary()
    return BuildReport(
        summary=summary,
        num_crowds=sum(person.crowd for person in stored_people),
        num_without_outline=sum(person.segmentation is None for person in stored_people),
        num_without_main_person=len(requested) - len(suitable),
        skipped=tuple(skipped.values()),
        frames=count_frames(frames),
        removed=tuple(replaced),
        seconds=time.perf_counter() - start,
    )


def _select_images(dataset: CocoDataset, image_ids: Collection[int] | None) -> list[CocoImage]:
    """The images with these ids, in the order of the file; ``DataError`` if the file lacks one of them."""
    if image_ids is None:
        return list(dataset.images)
    wanted = set(image_ids)
    selected = [image for image in dataset.images if image.id in wanted]
    unknown = wanted - {image.id for image in selected}
    if unknown:
        raise DataError(
            f"{dataset.path} has no image {min(unknown)} ({len(unknown)} unknown in all); correct --image-ids"
        )
    return selected


def _write_images(
    writer: StoreWriter | ShardedStoreWriter,
    images: list[CocoImage],
    prepare: Callable[[CocoImage], _PreparedImage | _UnreadableImage],
    workers: int | None,
    max_skipped: int,
    progress: bool,
) -> _WrittenImages:
    """Write the images in order; ``DataError`` if more than ``max_skipped`` cannot be read."""
    workers = workers or usable_cores()
    skipped: dict[int, str] = {}
    frames = []
    with closing(map_in_background(prepare, images, workers=workers, ahead=4 * workers)) as results:
        for result in progress_bar(results, "build", len(images), disable=not progress):
            if isinstance(result, _PreparedImage):
                writer.add(result.record, result.main_rows)
                frames.append(result.frame)
                continue
            skipped[result.image_id] = result.reason
            if len(skipped) > max_skipped:
                first = "; ".join(list(skipped.values())[:3])
                raise DataError(
                    f"more than {max_skipped} of {len(images)} images cannot be read, the most that "
                    f"--max-unreadable allows; restore them or raise it (posenet lint-annotations --images lists all "
                    f"problems): {first}"
                )
    return _WrittenImages(skipped, frames)


def _list_unlabelled(folder: Path) -> CocoDataset:
    """The images of a folder as a data set without people. Their sizes are not known yet: 0.

    An image id is the number that is the name of the file, as in COCO, if all names are numbers; else the images are
    numbered from 1 in the order of their names.
    """
    names = [path.relative_to(folder) for path in find_images([folder])]
    stems = [name.stem for name in names]
    ids = [int(stem) for stem in stems if stem.isascii() and stem.isdecimal() and len(stem) <= MAX_ID_DIGITS]
    if len(set(ids)) < len(names):
        ids = list(range(1, len(names) + 1))
    images = tuple(CocoImage(number, str(name), height=0, width=0) for number, name in zip(ids, names))
    return CocoDataset(folder, images, {image.id: [] for image in images})


def _prepare_unlabelled(folder: Path, num_keypoints: int, image: CocoImage) -> _PreparedImage | _UnreadableImage:
    """Read and check one image, and make its record, in which the loss of labels counts nowhere."""
    path = folder / image.file_name
    try:
        height, width = read_header(path).displayed_size
        image_bytes, frame = read_checked_image(path, height, width, "displayed")
    except (DataError, OSError, ValueError) as error:
        return _UnreadableImage(image.id, f"{path}: {getattr(error, 'strerror', None) or error}")
    nowhere = rle.encode_mask(np.zeros((height, width), np.uint8))
    record = Record(
        source=path,
        image_id=image.id,
        file_name=image.file_name,
        height=height,
        width=width,
        image_bytes=image_bytes,
        joints=np.zeros((0, num_keypoints, 3), np.float32),
        boxes=np.zeros((0, 4), np.float32),
        areas=np.zeros(0, np.float32),
        annotation_ids=np.zeros(0, np.int64),
        mask_all_rle=nowhere,
        mask_miss_rle=nowhere,
        orientation=frame.orientation,
    )
    return _PreparedImage(record, [], frame)


def _prepare_image(
    folder: Path, dataset: CocoDataset, min_labelled_keypoints: int, exif_frame: ExifFrame, image: CocoImage
) -> _PreparedImage | _UnreadableImage:
    """Read and check one image and make its record."""
    path = folder / image.file_name
    try:
        image_bytes, frame = read_checked_image(path, image.height, image.width, exif_frame)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return _UnreadableImage(image.id, f"{path} (image {image.id}): {reason}")
    people = dataset.people[image.id]
    labelled_rows = [row for row, person in enumerate(people) if person.labelled]
    labelled = [people[row] for row in labelled_rows]
    mask_all, mask_miss = person_masks(people, image.height, image.width)
    record = Record(
        source=path,
        image_id=image.id,
        file_name=image.file_name,
        height=image.height,
        width=image.width,
        image_bytes=image_bytes,
        joints=np.stack([person.keypoints for person in labelled]),
        boxes=np.stack([person.box for person in labelled]),
        areas=np.array([person.area for person in labelled], np.float32),
        annotation_ids=np.array([person.id for person in labelled], np.int64),
        mask_all_rle=rle.encode_mask(mask_all),
        mask_miss_rle=rle.encode_mask(mask_miss),
        orientation=frame.orientation,
    )
    main_rows = [labelled_rows.index(row) for row in select_main_persons(people, min_labelled_keypoints)]
    return _PreparedImage(record, main_rows, frame)
