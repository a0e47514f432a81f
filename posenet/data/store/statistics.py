"""Statistics of a store: people, keypoints, sizes and masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from posenet.data.store.record_store import RecordStore
from posenet.data.store.schema import NO_PERSON
from posenet.progress import progress_bar

PEOPLE_GROUPS = {
    "1": (1, 1),
    "2": (2, 2),
    "3": (3, 3),
    "4-5": (4, 5),
    "6-10": (6, 10),
    "11-20": (11, 20),
    "more": (21, np.inf),
}
"""Groups of images by number of people: the smallest and the largest number of each group."""


class Table(NamedTuple):
    """A table to print."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str | float, ...]]


def compute_statistics(store: RecordStore) -> list[Table]:
    """Count people, keypoints, sizes and masks of a store, without decoding images; ``DataError`` if it is damaged."""
    samples = store.samples
    image_rows, main_rows = samples[samples[:, 1] != NO_PERSON].T
    num_main = np.bincount(image_rows, minlength=store.num_images)
    main_rows_of_images = np.split(main_rows, np.cumsum(num_main)[:-1])
    num_people = []
    visibilities = []
    main_heights = []
    sizes = []
    mask_shares = []
    for row, image_main_rows in enumerate(progress_bar(main_rows_of_images, "statistics", leave=False)):
        record = store.read_record(row)
        num_people.append(len(record.joints))
        visibilities.append(record.joints[..., 2])
        main_heights.append(record.boxes[image_main_rows, 3])
        sizes.append((record.width, record.height, len(record.image_bytes) / 1000))
        mask_shares.append([runs[1::2].sum() / (record.width * record.height) for runs in record.mask_runs()])

    widths, heights, kilobytes = np.array(sizes).T
    people_shares, supervised_shares = np.array(mask_shares).T
    quantities = {"width, pixels": widths, "height, pixels": heights, "file, kB": kilobytes}
    if len(main_rows):
        quantities["main person's height, pixels"] = np.concatenate(main_heights)
    counts = {"images": store.num_images, "people": store.num_people, "main persons (training samples)": len(main_rows)}
    if num_unlabelled := len(samples) - len(main_rows):
        counts["images without annotations (training samples)"] = num_unlabelled
    quartiles = ("minimum", "lower quartile", "median", "upper quartile", "maximum")
    size_rows = [(name, *np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()) for name, values in quantities.items()]
    mask_rows = [_mask_row("people", people_shares), _mask_row("not supervised", 1 - supervised_shares)]
    tables = [Table("Contents", ("", "count"), list(counts.items()))]
    if store.num_people:
        tables.append(_people_table(np.array(num_people), num_main))
        tables.append(_keypoint_table(store.skeleton.keypoints, np.concatenate(visibilities)))
    tables.append(Table("Sizes", ("", *quartiles), size_rows))
    tables.append(Table("Masks", ("", "of the area", "images that have any"), mask_rows))
    return tables


def _people_table(num_people: np.ndarray, num_main: np.ndarray) -> Table:
    """Count the images by their (N,) numbers of people and of main persons."""

    def count_within(counts: np.ndarray, low: float, high: float) -> int:
        return int(((counts >= low) & (counts <= high)).sum())

    header = ("number", "images with that many people", "with that many main persons")
    rows = []
    for name, (low, high) in PEOPLE_GROUPS.items():
        rows.append((name, count_within(num_people, low, high), count_within(num_main, low, high)))
    return Table("People per image", header, rows)


def _keypoint_table(keypoints: tuple[str, ...], visibilities: np.ndarray) -> Table:
    """Count the labelled and the visible keypoints in (P, K) visibilities of all people."""
    rows = []
    for name, values in zip(keypoints, visibilities.T):
        num_labelled = (values > 0).sum()
        visible_share = (values == 2).sum() / max(num_labelled, 1)
        rows.append((name, f"{num_labelled / len(values):.1%}", f"{visible_share:.1%}"))
    return Table("Keypoints of all people", ("keypoint", "labelled", "visible, of the labelled"), rows)


def _mask_row(name: str, shares: np.ndarray) -> tuple[str, str, str]:
    """Mean share of the image area, and share of the images where it is not zero."""
    return name, f"{shares.mean():.1%}", f"{(shares > 0).mean():.1%}"
