"""Inspecting stores: counts and statistics, reading all of them, and the images that two have in common."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posenet.data.store import NO_PERSON, Store, make_image_keys
from posenet.data.store_list import StoreList, count_background
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.files import read_input
from posenet.images import check_image, oriented_size
from posenet.progress_bar import progress_bar
from posenet.settings import DataConfig
from posenet.skeleton import Skeleton
from posenet.threads import map_in_threads

PEOPLE_GROUPS = {"1": 1, "2": 2, "3": 3, "4-5": 4, "6-10": 6, "11-20": 11, "more": 21}
"""Groups of images by number of people: the smallest number of each group."""


@dataclass(frozen=True)
class StoreSummary:
    """Counts and sizes of a store. There is one sample per main person."""

    skeleton: Skeleton
    num_images: int
    num_people: int
    num_samples: int
    num_background: int
    num_image_bytes: int
    num_file_bytes: int


class Table(NamedTuple):
    """A table to print: the first column is aligned left, the others right."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str | float, ...]]

    def __str__(self) -> str:
        lines = [list(self.header), *([_format_cell(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines)]
        lines.insert(1, ["-" * width for width in widths])
        aligned = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
        return "\n".join([self.title, *("  ".join(line).rstrip() for line in aligned)])


def _format_cell(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def summarize(store: Store) -> StoreSummary:
    """Count the content of a store."""
    return StoreSummary(
        store.skeleton,
        store.num_images,
        store.num_people,
        len(store),
        count_background(store),
        store.num_image_bytes,
        store.path.stat().st_size,
    )


def verify_store(store: Store, *, workers: int | None = None) -> StoreSummary:
    """Read a whole store on ``workers`` threads (None: one per usable core); decode every image.

    Raises:
        DataError: the store is damaged. The message counts the damaged images and names the first.
    """

    def find_damage(row: int) -> str | None:
        try:
            record = store.read_record(row)
            header = check_image(record.image_bytes)
            if oriented_size(*header.stored_size, record.orientation) != (record.height, record.width):
                raise record.damage_error("has another size than its record")
        except (DataError, ValueError) as error:
            return str(error)
        return None

    workers = workers or usable_cores()
    rows = range(store.num_images)
    with closing(map_in_threads(find_damage, rows, workers=workers, ahead=4 * workers)) as results:
        damages = [damage for damage in progress_bar(results, "verify", len(rows)) if damage is not None]
    if damages:
        raise DataError(f"{len(damages)} of {store.num_images} images are damaged; first: {damages[0]}")
    return summarize(store)


def find_shared_images(first: Store | StoreList, second: Store | StoreList) -> np.ndarray:
    """(M, 2) int64: the ids in both stores of the image files that they share.

    The bytes alone are compared: importing numbers the images anew, so the same image may have another id.
    """
    _, first_rows, second_rows = np.intersect1d(first.image_keys, second.image_keys, return_indices=True)
    return np.stack([first.image_ids[first_rows], second.image_ids[second_rows]], axis=1)


def find_stored_files(stores: StoreList, paths: Sequence[Path]) -> list[Path]:
    """The image files whose bytes the stores contain too.

    Only files of a size that the stores contain are read. A file that cannot be read is left out.
    """
    stored = set(stores.image_keys.tolist())
    stored_sizes = {key >> 32 for key in stored}

    def is_stored(path: Path) -> bool:
        try:
            if path.stat().st_size not in stored_sizes:
                return False
            data = read_input(path)
        except OSError:
            return False
        (key,) = make_image_keys(np.array([len(data)]), np.array([zlib.crc32(data)])).tolist()
        return key in stored

    workers = usable_cores()
    with closing(map_in_threads(is_stored, paths, workers=workers, ahead=4 * workers)) as results:
        return [path for path, is_shared in zip(paths, results) if is_shared]


def describe_content(stores: StoreList) -> str:
    """The content in a few words, the same for two lists of stores only if all their images and people are."""
    return f"{stores.num_images} images and {len(stores)} samples with the fingerprint {stores.fingerprint[:8]}"


def describe_sets(stores: StoreList, framing: str, background: float = DataConfig.background) -> Table:
    """What every data set contributes to an epoch, and which keypoints it does not supervise."""
    counts = stores.sample_counts(framing, background)
    total = sum(per_epoch for _, per_epoch in counts)
    rows = []
    names = [*stores.names, f"images without {stores.skeleton.people}"]
    mappings = [*(data_set.mapping for data_set in stores.sets), None]
    for name, mapping, (size, per_epoch) in zip(names, mappings, counts):
        missing = mapping.missing if mapping else ()
        rows.append((name, size, per_epoch, f"{per_epoch / total:.1%}", " ".join(missing)))
    header = ("name", "samples", "per epoch", "of the epoch", "keypoints not supervised")
    return Table("Data sets", header, rows)


def compute_statistics(store: Store) -> list[Table]:
    """Count people, keypoints and sizes of a store, without reading images; ``DataError`` if it is damaged."""
    people, main_person = store.skeleton.people, f"main {store.skeleton.category}"
    image_rows, main_rows = store.samples[store.samples[:, 1] != NO_PERSON].T
    num_main = np.bincount(image_rows, minlength=store.num_images)
    visibilities = []
    main_heights = []
    main_rows_of_images = np.split(main_rows, np.cumsum(num_main)[:-1])
    for row, image_main_rows in enumerate(progress_bar(main_rows_of_images, "statistics", leave=False)):
        record = store.read_record(row, with_image=False)
        visibilities.append(record.joints[..., 2])
        main_heights.append(record.people["box"][image_main_rows, 3])

    widths, heights, kilobytes = (store.records[name] for name in ("width", "height", "image_bytes"))
    quantities = {"width, pixels": widths, "height, pixels": heights, "file, kB": kilobytes / 1000}
    if len(main_rows):
        quantities[f"{main_person}'s height, pixels"] = np.concatenate(main_heights)
    counts = {
        "images": store.num_images,
        people: store.num_people,
        f"{main_person} (training samples)": len(main_rows),
    }
    if num_unlabelled := len(store) - len(main_rows):
        counts["images without annotations (training samples)"] = num_unlabelled
    if num_background := count_background(store):
        counts[f"images without {people}"] = num_background
    quartiles = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
    size_rows = [(name, *np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()) for name, values in quantities.items()]
    tables = [Table("Contents", ("", "count"), list(counts.items()))]
    if store.num_people:
        tables.append(_people_table(people, np.array([len(values) for values in visibilities]), num_main))
        tables.append(_keypoint_table(store.skeleton, np.concatenate(visibilities)))
    tables.append(Table("Sizes", ("", *quartiles), size_rows))
    return tables


def _people_table(people: str, num_people: np.ndarray, num_main: np.ndarray) -> Table:
    """Count the images by their (N,) numbers of people and of main persons."""
    counts = [np.histogram(numbers, [*PEOPLE_GROUPS.values(), np.inf])[0] for numbers in (num_people, num_main)]
    rows = list(zip(PEOPLE_GROUPS, *(column.tolist() for column in counts)))
    return Table(f"Images by their number of {people}", ("number", "of all", "of main ones"), rows)


def _keypoint_table(skeleton: Skeleton, visibilities: np.ndarray) -> Table:
    """Count the labelled and the visible keypoints in (P, K) visibilities of all people."""
    rows = []
    for name, values in zip(skeleton.keypoints, visibilities.T):
        num_labelled = (values > 0).sum()
        visible_share = (values == 2).sum() / max(num_labelled, 1)
        rows.append((name, f"{num_labelled / len(values):.1%}", f"{visible_share:.1%}"))
    return Table(f"Keypoints of all {skeleton.people}", ("keypoint", "labelled", "visible, of the labelled"), rows)
