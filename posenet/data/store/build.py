"""Builds a store from a folder of images and a COCO keypoint file, and verifies stores.

Reading, decoding and hashing release the interpreter lock, so that threads use all cores and nothing outlives
the process.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from tqdm import tqdm

from posenet.annotations import run_lengths as rle
from posenet.annotations.coco_file import CocoDataset, CocoImage, main_persons, read_annotations
from posenet.annotations.masks import masks
from posenet.data.store.reader import Store
from posenet.data.store.record import Record
from posenet.data.store.schema import content_digest
from posenet.data.store.writer import StoreWriter, check_output
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.images.decoding import JPEG_START, declared_size, decode_image_bytes
from posenet.skeleton import COCO, Skeleton

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Summary:
    """What a store holds; ``samples`` are its main persons."""

    images: int
    people: int
    samples: int
    image_bytes: int
    file_bytes: int


@dataclass(frozen=True)
class BuildReport:
    """What a build did.

    Attributes:
        crowds: crowd regions in the stored images.
        boxes: people and crowds in them without a usable outline, whose masks show the box.
        left_out: images that were asked for but have no main person.
        skipped: one line for every unreadable image.
    """

    summary: Summary
    crowds: int
    boxes: int
    left_out: int
    skipped: tuple[str, ...]
    seconds: float


def build_store(
    images: str | Path,
    annotations: str | Path,
    output: str | Path,
    *,
    image_ids: Collection[int] | None = None,
    limit: int | None = None,
    workers: int | None = None,
    max_unreadable: float = 0.05,
    overwrite: bool = False,
    skeleton: Skeleton = COCO,
    progress: bool = False,
) -> BuildReport:
    """Write every image that has a main person to ``output``, in the order of the annotation file.

    Args:
        images: folder that the annotations' file names are relative to.
        annotations: COCO keypoint JSON.
        image_ids: only these images; None takes all.
        limit: only the first so many of the images that have a main person.
        workers: threads; None takes one per core. The store's bytes do not depend on it.
        max_unreadable: share of the images, rounded up to whole images, that may be missing, damaged or of another
            size than annotated; they are skipped and reported.
        overwrite: replace an existing store, once the new one is complete.

    Raises:
        DataError: unusable input or output, or too many unreadable images; then nothing is written.
    """
    start = time.perf_counter()
    check_output(Path(output), overwrite)
    if not Path(images).is_dir():
        raise DataError(f"image folder {images} does not exist; give the folder that holds the images")
    dataset = read_annotations(annotations, skeleton)
    chosen, left_out = _choose(dataset, image_ids, limit, skeleton.least_labelled)
    prepare = partial(_prepare, Path(images), dataset, skeleton.least_labelled)
    with StoreWriter(output, skeleton, annotations, overwrite) as writer:
        skipped = _write(writer, chosen, prepare, workers, math.ceil(max_unreadable * len(chosen)), progress)
    stored = [person for image in chosen if image.id not in skipped for person in dataset.people[image.id]]
    with Store(output, skeleton) as store:
        summary = summarise(store)
    return BuildReport(
        summary,
        sum(person.crowd for person in stored),
        sum(person.segmentation is None for person in stored),
        left_out,
        tuple(skipped.values()),
        time.perf_counter() - start,
    )


def verify(
    path: str | Path, *, skeleton: Skeleton | None = None, workers: int | None = None, progress: bool = False
) -> Summary:
    """Read a store from end to end: compare all digests, decode every image and mask.

    Raises:
        DataError: the store is damaged; the message counts the faults and names the first.
    """
    with Store(path, skeleton) as store:
        faults = []
        with closing(_in_order(partial(_check, store), range(store.num_images), workers)) as results:
            for _, future in tqdm(results, "verify", store.num_images, unit="image", disable=not progress):
                try:
                    future.result()
                except DataError as error:
                    faults.append(error)
        if faults:
            raise DataError(f"{len(faults)} of {store.num_images} images are damaged; first: {faults[0]}")
        return summarise(store)


def summarise(store: Store) -> Summary:
    """Counts and sizes of an open store."""
    return Summary(store.num_images, store.num_people, len(store), store.image_bytes, store.path.stat().st_size)


def _choose(
    dataset: CocoDataset, image_ids: Collection[int] | None, limit: int | None, least: int
) -> tuple[list[CocoImage], int]:
    """The images to store, and how many of those asked for have no main person of ``least`` labelled keypoints."""
    asked = dataset.images
    if image_ids is not None:
        wanted = set(image_ids)
        asked = tuple(image for image in dataset.images if image.id in wanted)
        if unknown := wanted - {image.id for image in asked}:
            raise DataError(
                f"{dataset.path} has no image {min(unknown)} ({len(unknown)} unknown in all); correct --image-ids"
            )
    chosen = [image for image in asked if main_persons(dataset.people[image.id], least)]
    return chosen[:limit], len(asked) - len(chosen)


def _write(
    writer: StoreWriter,
    chosen: list[CocoImage],
    prepare: Callable[[CocoImage], tuple[Record, list[int]]],
    workers: int | None,
    allowed: int,
    progress: bool,
) -> dict[int, str]:
    """Append the chosen images; returns what is wrong with the skipped ones, by image id."""
    skipped: dict[int, str] = {}
    with closing(_in_order(prepare, chosen, workers)) as results:
        for image, future in tqdm(results, "build", len(chosen), unit="image", disable=not progress):
            try:
                record, main = future.result()
            except DataError as error:
                skipped[image.id] = str(error)
                if len(skipped) > allowed:
                    names = "; ".join(list(skipped.values())[:3])
                    raise DataError(
                        f"more than {allowed} of {len(chosen)} images cannot be read, the most that "
                        f"--max-unreadable allows; restore them or raise it: {names}"
                    ) from error
                continue
            writer.add(record, main)
    return skipped


def _prepare(folder: Path, dataset: CocoDataset, least: int, image: CocoImage) -> tuple[Record, list[int]]:
    """One image as the store keeps it, its image checked, and the rows of its main persons."""
    path = folder / image.file_name
    try:
        jpeg = read_image_bytes(path, image.height, image.width)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} (image {image.id}): {getattr(error, 'strerror', None) or error}") from error
    people = dataset.people[image.id]
    kept = [row for row, person in enumerate(people) if person.labelled]
    persons = [people[row] for row in kept]
    mask_all, mask_miss = (rle.encode(mask) for mask in masks(people, image.height, image.width))
    record = Record(
        path,
        image.id,
        image.file_name,
        image.height,
        image.width,
        jpeg,
        joints=np.stack([person.keypoints for person in persons]),
        boxes=np.stack([person.box for person in persons]),
        areas=np.array([person.area for person in persons], np.float32),
        annotation_ids=np.array([person.id for person in persons], np.int64),
        mask_all_rle=mask_all,
        mask_miss_rle=mask_miss,
    )
    return record, [kept.index(row) for row in main_persons(people, least)]


def read_image_bytes(path: Path, height: int, width: int) -> np.ndarray:
    """(bytes,) uint8 of an image that decodes to the annotated size; ``OSError`` or ``ValueError`` otherwise."""
    data = path.read_bytes()
    start, end = data.rfind(b"\xff\xda"), data.rfind(b"\xff\xd9")
    if data.startswith(JPEG_START) and end < start:
        # Some releases of OpenCV fill the missing rows with grey and say nothing.
        raise ValueError("the JPEG data end early")
    jpeg = np.frombuffer(data, np.uint8)
    decode_image_bytes(jpeg, height, width, _reduction(jpeg, height, width))
    return jpeg


def _reduction(picture: np.ndarray, height: int, width: int) -> int:
    """How far an image may be reduced to find out whether it decodes.

    All data of a JPEG are read for an eighth of the size too, in three quarters of the time. The size that comes out
    would not tell 640 pixels from 639, so that the header has to.
    """
    return 8 if picture[:2].tobytes() == JPEG_START and declared_size(picture) == (height, width) else 1


def _check(store: Store, row: int) -> None:
    record = store.image(row)
    if not np.array_equal(content_digest(record.jpeg), store.digests[row]):
        raise record.fault("has another image than was written")
    record.decode_image(_reduction(record.jpeg, record.height, record.width))
    record.masks()


def _in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None
) -> Iterator[tuple[Item, Future[Result]]]:
    """Run ``function`` on threads; yield every item with its finished or running call, in order.

    Only a few calls run ahead of the reader, so that memory stays bounded; closing the generator cancels them.
    """
    workers = workers or usable_cores()
    pending: deque[tuple[Item, Future[Result]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for item in items:
            pending.append((item, pool.submit(function, item)))
            if len(pending) > 4 * workers:
                yield pending.popleft()
        while pending:
            yield pending.popleft()
    finally:
        pool.shutdown(cancel_futures=True)
