"""What a store holds, in numbers, and what two stores have in common."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from posenet.data.store.reader import Store

GROUPS = {
    "1": (1, 1),
    "2": (2, 2),
    "3": (3, 3),
    "4-5": (4, 5),
    "6-10": (6, 10),
    "11-20": (11, 20),
    "more": (21, np.inf),
}
"""Images are counted by how many people they show, from the first number to the last."""


class Table(NamedTuple):
    title: str
    header: tuple[str, ...]
    rows: list[tuple[str | int | float, ...]]


class Common(NamedTuple):
    """What two stores share."""

    ids: np.ndarray
    """(M,) int64, of images that both hold, whatever their bytes."""
    contents: np.ndarray
    """(L, 2) int64: ids in either store of images with the same bytes, whatever their ids."""


def survey(store: Store) -> list[Table]:
    """Count people, keypoints, sizes and masks of a store; no image is decoded.

    Raises:
        DataError: a record that is damaged.
    """
    image, person = store.samples.T
    main = np.bincount(image, minlength=store.num_images)
    joints, heights, sizes, areas = [], [], [], []
    mains = np.split(person, np.cumsum(main)[:-1])
    for row, chosen in enumerate(tqdm(mains, "survey", unit="image", leave=False)):
        record = store.image(row)
        joints.append(record.joints)
        heights.append(record.boxes[chosen, 3])
        sizes.append((record.width, record.height, len(record.jpeg) / 1000))
        areas.append([runs[1::2].sum() / (record.width * record.height) for runs in record.mask_runs()])
    people, states = np.array([len(j) for j in joints]), np.concatenate(joints)[..., 2]
    widths, tallness, kilobytes = np.array(sizes).T
    covered, supervised = np.array(areas).T
    quantities = {
        "width, pixels": widths,
        "height, pixels": tallness,
        "file, kB": kilobytes,
        "main person's height, pixels": np.concatenate(heights),
    }
    return [
        Table(
            "What it holds",
            ("", "count"),
            [
                ("images", store.num_images),
                ("people", store.num_people),
                ("main persons (training samples)", len(store)),
            ],
        ),
        Table(
            "People in an image",
            ("number", "images with so many", "with so many main persons"),
            [(name, _within(people, *ends), _within(main, *ends)) for name, ends in GROUPS.items()],
        ),
        Table(
            "Keypoints, of all people",
            ("keypoint", "labelled", "of these visible"),
            [
                (name, f"{(s > 0).mean():.1%}", f"{(s == 2).sum() / max((s > 0).sum(), 1):.1%}")
                for name, s in zip(store.skeleton.keypoints, states.T)
            ],
        ),
        Table(
            "Sizes",
            ("", "least", "a quarter below", "half", "three quarters", "most"),
            [(name, *np.quantile(values, [0, 0.25, 0.5, 0.75, 1]).tolist()) for name, values in quantities.items()],
        ),
        Table(
            "Masks",
            ("", "of the area", "images that have any"),
            [
                (name, f"{share.mean():.1%}", f"{(share > 0).mean():.1%}")
                for name, share in (("people", covered), ("not supervised", 1 - supervised))
            ],
        ),
    ]


def common(a: Store, b: Store) -> Common:
    """Compare two stores by image id and by the digests of the images' bytes."""
    ids = {digest.tobytes(): number for digest, number in zip(a.digests, a.image_ids.tolist())}
    pairs = [
        (ids[key], number)
        for digest, number in zip(b.digests, b.image_ids.tolist())
        if (key := digest.tobytes()) in ids
    ]
    return Common(np.intersect1d(a.image_ids, b.image_ids), np.array(pairs, np.int64).reshape(-1, 2))


def _within(counts: np.ndarray, low: float, high: float) -> int:
    return int(((counts >= low) & (counts <= high)).sum())
