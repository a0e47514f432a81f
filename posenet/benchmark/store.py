"""How fast a store is opened, read and built, compared with plain reads and with the work that no builder can avoid."""

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
from posenet.data.store.image_check import read_image_bytes
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
    """The same for the work that no builder can avoid."""


class BuildMeasurement(NamedTuple):
    """The result of timing builds."""

    num_images: int
    by_cores: dict[int, BuildTimes]


def measure_store(
    path: Path | None, images: Path, annotations: Path, folder: Path, skeleton: Skeleton, records: int, repeats: int
) -> Report:
    """Build a store of ``images``; open and read the store at ``path``, or the built one if that is None.

    Args:
        images: folder of the images, see ``build_store``.
        annotations: COCO keypoint JSON, see ``build_store``.
        folder: empty folder for the built store.
        records: number of records to read in each order, at most.

    Raises:
        DataError: the input cannot be used.
    """
    if path:
        Store(path, skeleton=None).close()  # raises errors of the store before the long build
    # Building comes before reading, which makes this process keep its freed memory, as a loader's worker does.
    built = measure_building(images, annotations, folder, skeleton, repeats)
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
    for cores, times in built.by_cores.items():
        speed = built.num_images / times.store
        floor_speed = built.num_images / times.floor
        rows.append((f"building, cores: {cores}", "images/s", speed, floor_speed, percent(times.floor, times.store)))
    return Report(
        title=f"store: {path.name}, {opening['images']} images of {reading['bytes_per_record'] / 1e3:.0f} kB; "
        f"building one of {built.num_images}",
        header=("", "unit", "store", "beside", "ratio"),
        rows=rows,
        numbers={
            **opening,
            **reading,
            "build_pictures_per_s": {str(c): built.num_images / times.store for c, times in built.by_cores.items()},
            "floor_pictures_per_s": {str(c): built.num_images / times.floor for c, times in built.by_cores.items()},
            "build_share_of_floor": {str(c): times.floor / times.store for c, times in built.by_cores.items()},
            "built_pictures": built.num_images,
        },
        notes=[
            "everything is in the file system's cache; medians of runs that take turns",
            f"opening includes reading the arrays that are kept in memory, {opening['open_bytes'] / 1e6:.1f} MB here",
            "beside reading: one plain pread of as many bytes as the image, the masks and the joints of the record "
            f"have, in the same order; one of {NUM_RANKS} ranks reads every {NUM_RANKS}th record of a shuffled order",
            "beside building: one independent process per core. Each reads the annotations, then its share of the "
            "images, checks that they decode, makes and encodes their masks, and writes all of it",
        ],
    )


def write_first_images(annotations: Path, count: int, output: Path) -> Path:
    """Write an annotation file of the first ``count`` images, so that reading it takes its fair share of the time.

    Returns:
        The path of the written file; the given file if it is not a COCO file, so that the builder reports its faults.
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
    """Milliseconds to open the store, and the bytes that it then keeps in memory."""
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
) -> BuildMeasurement:
    """Time builds on one core and on all cores, in turn with the unavoidable work on as many cores."""
    core_counts = sorted({1, usable_cores()})
    num_images = 0

    def build(cores: int) -> None:
        nonlocal num_images
        with limit_cores(cores):
            report = build_store(
                images, annotations, folder / BUILT_NAME, max_unreadable=1, overwrite=True, skeleton=skeleton
            )
        num_images = report.summary.num_images

    with contextlib.ExitStack() as stack:
        tasks: dict[str, Callable[[], object]] = {}
        for cores in core_counts:
            tasks[f"build {cores}"] = partial(build, cores)
            argument_lists = [
                (images, annotations, folder / f"floor {rank} of {cores}", skeleton, rank, cores)
                for rank in range(cores)
            ]
            tasks[f"floor {cores}"] = stack.enter_context(waiting_processes(argument_lists))
        seconds = median_seconds(tasks, repeats)
    by_cores = {cores: BuildTimes(seconds[f"build {cores}"], seconds[f"floor {cores}"]) for cores in core_counts}
    return BuildMeasurement(num_images, by_cores)


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


@contextlib.contextmanager
def waiting_processes(argument_lists: Sequence[tuple[Any, ...]]) -> Iterator[Callable[[], None]]:
    """Start one waiting process per argument list of ``do_unavoidable_work``.

    Yields:
        A function that lets every process do its work once, and returns when all are done.
    """
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    started = []

    def work() -> None:
        try:
            for connection in connections:
                connection.send(True)
            for connection in connections:
                connection.recv()
        except (EOFError, OSError) as error:
            raise DataError("a process that measures the floor has died; measure again") from error

    try:
        for arguments in argument_lists:
            ours, theirs = context.Pipe()
            process = context.Process(target=work_on_request, args=(theirs, arguments), daemon=True)
            process.start()
            started.append(process)
            theirs.close()  # so that each side notices when the other one dies
            connections.append(ours)
        yield work
    finally:
        for connection in connections:
            connection.close()
        for process in started:
            process.join()


def work_on_request(connection: Connection, arguments: tuple[Any, ...]) -> None:
    """Run ``do_unavoidable_work`` on every request, until the other side closes the connection."""
    cv2.setNumThreads(0)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while connection.recv():
            do_unavoidable_work(*arguments)
            connection.send(True)


def do_unavoidable_work(
    images: Path, annotations: Path, output: Path, skeleton: Skeleton, rank: int, cores: int
) -> None:
    """Do what every builder of a store has to do, for the share of one core."""
    dataset = read_annotations(annotations, skeleton)
    chosen = [
        image
        for image in dataset.images
        if select_main_persons(dataset.people[image.id], skeleton.min_labelled_keypoints)
    ]
    with open(output, "wb") as file:
        for image in chosen[rank::cores]:
            with contextlib.suppress(OSError, ValueError):  # a store leaves unreadable images out
                file.write(read_image_bytes(images / image.file_name, image.height, image.width).data)
                for mask in person_masks(dataset.people[image.id], image.height, image.width):
                    file.write(rle.encode_mask(mask))
        file.flush()
        os.fsync(file.fileno())
