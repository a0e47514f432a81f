"""Inspecting stores: counts and statistics, reading all of them, and the images that two have in common."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from posenet.data.store import NO_PERSON, Store, make_image_keys
from posenet.data.store_list import StoreList
from posenet.errors import DataError
from posenet.files import read_input
from posenet.images import check_image
from posenet.progress_bar import progress_bar
from posenet.threads import map_in_threads, usable_cores

QUARTILES = {"minimum": 0.0, "lower": 0.25, "median": 0.5, "upper": 0.75, "maximum": 1.0}
"""The columns of sizes in the statistics of a store; lower and upper are quartiles."""


def verify_store(store: Store, *, workers: int | None = None) -> None:
    """Read a whole store on ``workers`` threads (None: one per usable core); decode every image.

    Raises:
        DataError: the store is damaged. The message counts the damaged images and names the first.
    """

    def find_damage(row: int) -> str | None:
        try:
            record = store.read_record(row)
            header = check_image(record.image_bytes)
            size = header.displayed_size if record.orientation == header.orientation else header.stored_size
            if size != (record.height, record.width):
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


def compute_statistics(store: Store) -> Iterator[str]:
    """Yield lines with quartiles of sizes, and how many people have each keypoint, without reading images.

    Raises:
        DataError: the store is damaged.
    """
    visibilities, people = [], []
    for row in progress_bar(range(store.num_images), "statistics", leave=False):
        record = store.read_record(row, with_image=False)
        visibilities.append(record.joints[..., 2])
        people.append(record.people)
    main_rows = [(row, person) for row, person in store.samples.tolist() if person != NO_PERSON]
    quantities = {
        "width, pixels": store.records["width"],
        "height, pixels": store.records["height"],
        "file, kB": store.records["image_bytes"] / 1000,
        f"{store.skeleton.people} in an image": store.records["num_people"],
        f"main {store.skeleton.category}'s height, pixels": [
            people[row]["box"][person, 3] for row, person in main_rows
        ],
    }
    width = max(map(len, [*quantities, *store.skeleton.keypoints])) + 2
    yield " " * width + "".join(f"{name:>10}" for name in QUARTILES)
    for name, values in quantities.items():
        if len(values):
            cells = (
                f"{value:>10.0f}" if value >= 100 else f"{value:>10.3g}"
                for value in np.quantile(values, list(QUARTILES.values()))
            )
            yield f"{name:<{width}}" + "".join(cells)
    if not store.num_people:
        return
    for name, values in zip(store.skeleton.keypoints, np.concatenate(visibilities).T):  # values: (people,)
        visible = (values == 2).sum() / max((values > 0).sum(), 1)
        yield f"{name:<{width}}{(values > 0).mean():>10.1%} labelled, {visible:.1%} of these visible"
