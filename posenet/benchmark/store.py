"""How fast a store is opened, read and built, compared with plain reads and with the minimum work of a build."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import statistics
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from posenet.annotations import run_lengths as rle
from posenet.annotations.coco_dataset import read_annotations
from posenet.annotations.coco_file import read_document
from posenet.annotations.main_persons import select_main_persons
from posenet.annotations.masks import person_masks
from posenet.benchmark.report import Report, percent
from posenet.benchmark.timing import Stopwatch, median_seconds
from posenet.data.loader import keep_freed_memory
from posenet.data.store.build import build_store
from posenet.data.store.image_check import read_checked_image
from posenet.data.store.reader import Store
from posenet.data.store.schema import checksum
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.skeleton import Skeleton

BUILT_NAME = "built.h5"
NUM_RANKS = 4
"""Number of processes that share a shuffled order, to read what one of them reads."""


class BuildTimes(NamedTuple):
    """Median seconds of a build on some number of cores."""

    store: float
    floor: float
    """The same for the minimum work of a build."""


def measure_store(
    path: Path | None, images: Path, annotations: Path, folder: Path, skeleton: Skeleton, records: int, repeats: int
) -> Report:
    """Build a store of ``images``; open and read the store at ``path``, or the built one if that is None.

    ``folder`` is an empty folder for the built store; ``records`` is the largest number to read in each order.
    """
    if path:
        Store(path, skeleton=None).close()  # raises errors of the store before the long build
    # Building is measured before reading, because ``measure_reading`` changes how this process allocates memory.
    num_built, build_times = measure_building(images, annotations, folder, skeleton, repeats)
    path = path or folder / BUILT_NAME
    opening = measure_opening(path, repeats)
    reading = measure_reading(path, records, repeats)
    store_us: dict[str, float] = reading["read_us"]
    plain_us: dict[str, float] = reading["pread_us"]
    ratios: dict[str, float] = reading["read_over_pread"]

    rows: list[tuple[Any, ...]] = [("opening", "ms", opening["open_ms"], None, None)]
    for order, microseconds in store_us.items():
        rows.append((f"reading a record, {order}", "us", microseconds, plain_us[order], f"{ratios[order]:.2f} x"))
    crc_us = reading["checksum_us"]
    rows.append(("its CRC-32, part of it", "us", crc_us, None, percent(crc_us, store_us["random"])))
    for cores, times in build_times.items():
        speed = num_built / times.store
        floor_speed = num_built / times.floor
        rows.append((f"building, cores: {cores}", "images/s", speed, floor_speed, percent(times.floor, times.store)))
    return Report(
        title=f"store: {path.name}, {opening['images']} images of {reading['bytes_per_record'] / 1e3:.0f} kB; "
        f"building one of {num_built}",
        header=("", "unit", "store", "baseline", "ratio"),
        rows=rows,
        numbers={
            **opening,
            **reading,
            "build_pictures_per_s": {str(cores): num_built / times.store for cores, times in build_times.items()},
            "floor_pictures_per_s": {str(cores): num_built / times.floor for cores, times in build_times.items()},
            "build_share_of_floor": {str(cores): times.floor / times.store for cores, times in build_times.items()},
            "built_pictures": num_built,
        },
        notes=[
            "all files are in the file system's cache; medians of runs that alternate",
            f"opening includes reading the arrays that are kept in memory, {opening['open_bytes'] / 1e6:.1f} MB here",
            "baseline of reading: one plain pread of the number of bytes of a record's image, masks and joints, in the "
            f"same order; one of {NUM_RANKS} ranks reads every {NUM_RANKS}th record of a shuffled order",
            "baseline of building: one independent process per core. Each reads the annotations, then its share of the "
            "images, checks that they decode, makes and encodes their masks, and writes everything",
        ],
    )


def write_first_images(annotations: Path, count: int, output: Path) -> Path:
    """Write an annotation file of the first ``count`` images, and return its path.

    Returns ``annotations`` itself if that is not a COCO file, so that the builder reports its faults.
    """
    document = read_document(annotations)
    try:
        images = document["images"][:count]
        image_ids = {image["id"] for image in images}
        people = [entry for entry in document["annotations"] if entry["image_id"] in image_ids]
        output.write_text(json.dumps(document | {"images": images, "annotations": people}), encoding="utf-8")
    except (KeyError, TypeError):
        return annotations
    return output


def measure_opening(path: Path, repeats: int) -> dict[str, Any]:
    """Milliseconds to open the store, and the bytes that it keeps in memory."""
    tracemalloc.start()
    store = Store(path, skeleton=None)
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()

    def reopen() -> None:
        Store(path, skeleton=None).close()

    seconds = median_seconds({"open": reopen}, repeats)
    return {"images": store.num_images, "open_ms": 1000 * seconds["open"], "open_bytes": allocated}


def measure_reading(path: Path, records: int, repeats: int) -> dict[str, Any]:
    """Microseconds per record in every order, by the store and by plain reads, and of a record's CRC-32."""
    keep_freed_memory()  # as a loader's worker does
    file_bytes = path.stat().st_size
    with Store(path, skeleton=None) as store, open(path, "rb", buffering=0) as file:
        orders = reading_orders(store.num_images, records)
        sizes = {row: record_bytes(store, row) for row in set().union(*orders.values())}

        def read_records(order: list[int]) -> None:
            for row in order:
                store.read_record(row)

        descriptor = file.fileno()

        def read_plainly(slices: list[tuple[int, int]]) -> None:
            for size, offset in slices:
                plain_read(descriptor, size, offset)

        tasks: dict[str, Callable[[], object]] = {}
        for name, order in orders.items():
            slices = [(sizes[row], row * (file_bytes - sizes[row]) // store.num_images) for row in order]
            tasks[name] = partial(read_records, order)
            tasks[f"{name}, plain"] = partial(read_plainly, slices)
        seconds = median_seconds(tasks, repeats)
        crc_us = 1e6 * checksum_seconds(store, orders["random"], repeats)
    store_us = {name: 1e6 * seconds[name] / len(order) for name, order in orders.items()}
    plain_us = {name: 1e6 * seconds[f"{name}, plain"] / len(order) for name, order in orders.items()}
    return {
        "read_us": store_us,
        "pread_us": plain_us,
        "read_over_pread": {name: store_us[name] / plain_us[name] for name in orders},
        "checksum_us": crc_us,
        "checksum_share": crc_us / store_us["random"],
        "bytes_per_record": statistics.mean(sizes.values()),
        "records": len(orders["random"]),
    }


def reading_orders(images: int, records: int) -> dict[str, list[int]]:
    """Rows of a store in the orders to measure, at most ``records`` of each."""
    rng = np.random.default_rng(0)
    orders = {
        "random": rng.permutation(images),
        "sequential": np.arange(images),
        f"one of {NUM_RANKS} ranks": rng.permutation(images)[::NUM_RANKS],
    }
    return {name: order[:records].tolist() for name, order in orders.items()}


def record_bytes(store: Store, row: int) -> int:
    """Bytes of a record that are not kept in memory."""
    record = store.read_record(row)
    return record.image_bytes.nbytes + len(record.mask_all_rle) + len(record.mask_miss_rle) + record.joints.nbytes


def plain_read(file: int, size: int, offset: int) -> bytes:
    """Read ``size`` bytes in one call: the least that a record costs."""
    if hasattr(os, "pread"):
        return os.pread(file, size, offset)
    os.lseek(file, offset, os.SEEK_SET)
    return os.read(file, size)


def checksum_seconds(store: Store, order: Sequence[int], repeats: int) -> float:
    """Median seconds of the CRC-32 of a record that has just been read."""
    watch = Stopwatch()
    for _ in range(repeats):
        watch.start_round()
        for row in order:
            record = store.read_record(row)
            watch.skip()
            checksum(record)
            watch.lap("checksum")
    return watch.round_median() / len(order)


def measure_building(
    images: Path, annotations: Path, folder: Path, skeleton: Skeleton, repeats: int
) -> tuple[int, dict[int, BuildTimes]]:
    """The number of images that are built, and the times on one core and on all cores, by number of cores."""
    core_counts = sorted({1, usable_cores()})
    num_images = 0

    def build(cores: int) -> None:
        nonlocal num_images
        with limit_cores(cores):
            report = build_store(
                images,
                annotations,
                folder / BUILT_NAME,
                max_unreadable=1,
                overwrite=True,
                skeleton=skeleton,
                progress=False,
            )
        num_images = report.summary.num_images

    def do_minimum_work(pool: ProcessPoolExecutor, cores: int) -> None:
        task = partial(do_unavoidable_work, images, annotations, folder, skeleton, cores)
        try:
            list(pool.map(task, range(cores)))
        except BrokenProcessPool as error:
            raise DataError("a process that measures the floor has died; measure again") from error

    with contextlib.ExitStack() as stack:
        tasks: dict[str, Callable[[], object]] = {}
        for cores in core_counts:
            context = multiprocessing.get_context("spawn")
            pool = stack.enter_context(ProcessPoolExecutor(cores, context, _start_worker))
            tasks[f"build {cores}"] = partial(build, cores)
            tasks[f"floor {cores}"] = partial(do_minimum_work, pool, cores)
        seconds = median_seconds(tasks, repeats)
    return num_images, {
        cores: BuildTimes(seconds[f"build {cores}"], seconds[f"floor {cores}"]) for cores in core_counts
    }


@contextlib.contextmanager
def limit_cores(count: int) -> Iterator[None]:
    """Run this thread, and those that it starts, on ``count`` cores, if the system can limit them."""
    if not (hasattr(os, "sched_getaffinity") and hasattr(os, "sched_setaffinity")):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _start_worker() -> None:
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the main process, which ends its workers


def do_unavoidable_work(
    images: Path, annotations: Path, folder: Path, skeleton: Skeleton, cores: int, rank: int
) -> None:
    """Do the work that every builder of a store has to do, for the share of one core; write it into ``folder``."""
    dataset = read_annotations(annotations, skeleton)
    min_labelled = skeleton.min_labelled_keypoints
    chosen = [image for image in dataset.images if select_main_persons(dataset.people[image.id], min_labelled)]
    with open(folder / f"floor {rank} of {cores}", "wb") as file:
        for image in chosen[rank::cores]:
            with contextlib.suppress(OSError, ValueError):  # a store leaves unreadable images out
                path = images / image.file_name
                file.write(read_checked_image(path, image.height, image.width, "stored").image_bytes.data)
                for mask in person_masks(dataset.people[image.id], image.height, image.width):
                    file.write(rle.encode_mask(mask))
        file.flush()
        os.fsync(file.fileno())
