"""How fast a store is opened, read and built, beside the plain reads and the work that this cannot do without."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.annotations.coco_file import main_persons, read_annotations, read_document
from posenet.annotations.masks import masks
from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch, median_seconds
from posenet.data.store.build import build_store, read_image_bytes
from posenet.data.store.reader import Store
from posenet.data.store.schema import checksum
from posenet.devices.cpu import keep_freed_memory, usable_cores
from posenet.errors import DataError
from posenet.skeleton import Skeleton

BUILT = "built.h5"
RANKS = 4
"""Processes among which a shuffled order is dealt out, to read what one of them does."""


def measure_store(
    path: Path | None, images: Path, annotations: Path, folder: Path, skeleton: Skeleton, records: int, repeats: int
) -> Report:
    """Build a store of ``images``; open and read the one at ``path``, or that one.

    Args:
        images, annotations: what ``build_store`` takes.
        folder: an empty one, for what is built.
        records: how many to read in each order, at most.

    Raises:
        DataError: unusable input.
    """
    if path:
        Store(path, skeleton=None).close()  # whatever is wrong with it shows before all the building
    # Building comes before reading, which keeps freed memory as a loader's worker does.
    pictures, built = measure_building(images, annotations, folder, skeleton, repeats)
    path = path or folder / BUILT
    opening = measure_opening(path, repeats)
    reading = measure_reading(path, records, repeats)
    rows: list[tuple[Any, ...]] = [("opening", "ms", opening["open_ms"], None, None)]
    for name, (ours, plain) in reading["read_us"].items():
        rows.append((f"reading a record, {name}", "us", ours, plain, f"{ours / plain:.2f} x"))
    rows.append(
        (
            "its CRC-32, part of it",
            "us",
            reading["checksum_us"],
            None,
            percent(reading["checksum_us"], reading["read_us"]["random"][0]),
        )
    )
    for cores, (ours, floor) in built.items():
        rows.append(
            (f"building, cores: {cores}", "pictures/s", pictures / ours, pictures / floor, percent(floor, ours))
        )
    return Report(
        title=f"store: {path.name}, {opening['images']} images of {reading['bytes_per_record'] / 1e3:.0f} kB; "
        f"building one of {pictures}",
        header=("", "unit", "store", "beside", "ratio"),
        rows=rows,
        numbers=opening
        | reading
        | {
            "read_us": {name: ours for name, (ours, _) in reading["read_us"].items()},
            "pread_us": {name: plain for name, (_, plain) in reading["read_us"].items()},
            "read_over_pread": {name: ours / plain for name, (ours, plain) in reading["read_us"].items()},
            "build_pictures_per_s": {str(cores): pictures / ours for cores, (ours, _) in built.items()},
            "floor_pictures_per_s": {str(cores): pictures / floor for cores, (_, floor) in built.items()},
            "build_share_of_floor": {str(cores): floor / ours for cores, (ours, floor) in built.items()},
            "built_pictures": pictures,
        },
        notes=[
            "everything is in the file system's cache; medians of runs in turn",
            f"opening also reads the arrays that are held in memory, {opening['open_bytes'] / 1e6:.1f} MB here",
            "beside reading: one plain pread of as many bytes as the record's image, masks and joints have, in "
            f"the same order; one of {RANKS} ranks reads every {RANKS}th of a shuffled one",
            "beside building: processes that share nothing, one per core, each reading the annotations, then its "
            "share of the images; checking that they decode, making and encoding their masks, and writing it all",
        ],
    )


def first_images(annotations: Path, count: int, output: Path) -> Path:
    """An annotation file of the first ``count`` images; the given one where that is no COCO file, for others to refuse.

    With it the time to read annotations is in the proportion that it has for all images.
    """
    document = read_document(annotations)
    try:
        images = document["images"][:count]
        listed = {image["id"] for image in images}
        people = [entry for entry in document["annotations"] if entry["image_id"] in listed]
        output.write_text(json.dumps(document | {"images": images, "annotations": people}), encoding="utf-8")
    except (KeyError, TypeError):
        return annotations
    return output


def measure_opening(path: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds to open the store, and the bytes that it then holds in memory."""
    tracemalloc.start()
    store = Store(path, skeleton=None)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()

    def reopen() -> None:
        Store(path, skeleton=None).close()

    seconds = median_seconds({"open": reopen}, repeats)
    return {"images": store.num_images, "open_ms": 1000 * seconds["open"], "open_bytes": held}


def measure_reading(path: Path, records: int, repeats: int) -> dict[str, Any]:
    """Microseconds a record in every order, by the store and by ``pread``, and of one record's CRC-32."""
    keep_freed_memory()  # as a loader's worker does
    length = path.stat().st_size
    with Store(path, skeleton=None) as store, open(path, "rb", buffering=0) as file:
        orders = reading_orders(store.num_images, records)
        sizes = {row: record_bytes(store, row) for row in set().union(*orders.values())}
        tasks: dict[str, Callable[[], object]] = {}
        for name, order in orders.items():
            tasks[name] = partial(each, store.image, [(row,) for row in order])
            spans = [(sizes[row], row * (length - sizes[row]) // store.num_images) for row in order]
            tasks[f"{name}, plain"] = partial(each, partial(plain_read, file.fileno()), spans)
        seconds = median_seconds(tasks, repeats)
        crc = checksum_seconds(store, orders["random"], repeats)
    found = {
        name: tuple(1e6 * seconds[task] / len(order) for task in (name, f"{name}, plain"))
        for name, order in orders.items()
    }
    return {
        "read_us": found,
        "checksum_us": 1e6 * crc,
        "checksum_share": 1e6 * crc / found["random"][0],
        "bytes_per_record": statistics.mean(sizes.values()),
        "records": len(orders["random"]),
    }


def each(read: Callable[..., object], arguments: Sequence[tuple[int, ...]]) -> None:
    for words in arguments:
        read(*words)


def reading_orders(images: int, records: int) -> dict[str, list[int]]:
    """Rows of a store in the orders that are measured, at most ``records`` of each."""
    rng = np.random.default_rng(0)
    shuffled, dealt = rng.permutation(images), rng.permutation(images)[::RANKS]
    orders = {"random": shuffled, "sequential": np.arange(images), f"one of {RANKS} ranks": dealt}
    return {name: order[:records].tolist() for name, order in orders.items()}


def record_bytes(store: Store, row: int) -> int:
    """Bytes of an image that are not held in memory."""
    record = store.image(row)
    return record.jpeg.nbytes + len(record.mask_all_rle) + len(record.mask_miss_rle) + record.joints.nbytes


def plain_read(file: int, size: int, place: int) -> bytes:
    """What a record costs at least: one call for as many bytes."""
    if hasattr(os, "pread"):
        return os.pread(file, size, place)
    os.lseek(file, place, os.SEEK_SET)
    return os.read(file, size)


def checksum_seconds(store: Store, order: Sequence[int], repeats: int) -> float:
    """Median seconds of the CRC-32 of a record that has just been read."""
    watch = Stopwatch()
    for _ in range(repeats):
        watch.start_round()
        for row in order:
            record = store.image(row)
            watch.skip()
            checksum(record)
            watch.lap("checksum")
    return watch.round_median() / len(order)


def measure_building(
    images: Path, annotations: Path, folder: Path, skeleton: Skeleton, repeats: int
) -> tuple[int, dict[int, tuple[float, float]]]:
    """Images of the store that is built; by number of cores, the seconds it takes, and those of its floor."""
    counts = sorted({1, usable_cores()})
    pictures = 0

    def build(cores: int) -> None:
        nonlocal pictures
        with on_cores(cores):
            report = build_store(
                images, annotations, folder / BUILT, max_unreadable=1, overwrite=True, skeleton=skeleton
            )
        pictures = report.summary.images

    with contextlib.ExitStack() as stack:
        tasks: dict[str, Callable[[], object]] = {}
        for cores in counts:
            tasks[f"build {cores}"] = partial(build, cores)
            strangers = [
                (images, annotations, folder / f"{turn} of {cores}", skeleton, turn, cores) for turn in range(cores)
            ]
            tasks[f"floor {cores}"] = stack.enter_context(processes(strangers))
        seconds = median_seconds(tasks, repeats)
    return pictures, {cores: (seconds[f"build {cores}"], seconds[f"floor {cores}"]) for cores in counts}


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Keep this thread, and those that it starts, to so many cores where the system can do that."""
    if not (hasattr(os, "sched_getaffinity") and hasattr(os, "sched_setaffinity")):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def processes(works: Sequence[tuple[Any, ...]]) -> Iterator[Callable[[], None]]:
    """Processes that wait, one for every argument list of ``least_work``; the function lets all of them work once."""
    context = multiprocessing.get_context("spawn")
    ends: list[Connection] = []
    started = []

    def work() -> None:
        try:
            for end in ends:
                end.send(True)
            for end in ends:
                end.recv()
        except (EOFError, OSError) as error:
            raise DataError("a process that measures the floor has died; measure again") from error

    try:
        for arguments in works:
            ours, theirs = context.Pipe()
            started.append(context.Process(target=serve, args=(theirs, arguments), daemon=True))
            started[-1].start()
            theirs.close()  # so that either side notices when the other one dies
            ends.append(ours)
        yield work
    finally:
        for end in ends:
            end.close()
        for process in started:
            process.join()


def serve(end: Connection, arguments: tuple[Any, ...]) -> None:
    """Do ``least_work`` whenever told to, until nobody is left who could tell."""
    cv2.setNumThreads(0)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while end.recv():
            least_work(*arguments)
            end.send(True)


def least_work(images: Path, annotations: Path, output: Path, skeleton: Skeleton, turn: int, cores: int) -> None:
    """What no builder of a store can leave out, for the share of one core."""
    dataset = read_annotations(annotations, skeleton)
    chosen = [image for image in dataset.images if main_persons(dataset.people[image.id], skeleton.least_labelled)]
    with open(output, "wb") as file:
        for image in chosen[turn::cores]:
            with contextlib.suppress(OSError, ValueError):  # unreadable images are left out of a store
                file.write(read_image_bytes(images / image.file_name, image.height, image.width))
                for mask in masks(dataset.people[image.id], image.height, image.width):
                    file.write(rle.encode(mask))
        file.flush()
        os.fsync(file.fileno())
