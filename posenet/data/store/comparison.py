"""Compares stores: the images that two stores share, whether they have the same content, and which are labelled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from posenet.data.store.record_store import RecordStore
from posenet.data.store.schema import NO_PERSON

AnyStore = TypeVar("AnyStore", bound=RecordStore)


class SharedImages(NamedTuple):
    """The images that two stores share."""

    ids: np.ndarray
    """(M,) int64: ids that both stores have; the bytes of these images may differ."""
    contents: np.ndarray
    """(L, 2) int64: ids in the first and in the second store of images with the same bytes; the ids may differ."""


def find_shared_images(first: RecordStore, second: RecordStore) -> SharedImages:
    """Compare two stores by image id and by the bytes of the images."""
    first_ids = {digest.tobytes(): image_id for digest, image_id in zip(first.digests, first.image_ids.tolist())}
    pairs = []
    for digest, image_id in zip(second.digests, second.image_ids.tolist()):
        first_id = first_ids.get(digest.tobytes())
        if first_id is not None:
            pairs.append((first_id, image_id))
    return SharedImages(np.intersect1d(first.image_ids, second.image_ids), np.array(pairs, np.int64).reshape(-1, 2))


def count_unlabelled(store: RecordStore) -> int:
    """The number of images without annotations."""
    return int((store.samples[:, 1] == NO_PERSON).sum())


def describe_content(store: RecordStore) -> str:
    """The content of a store in a few words, the same for two stores only if all their images and people are.

    The fingerprint covers all arrays, and these contain a digest of every image.
    """
    return f"{store.num_images} images and {len(store)} samples with the fingerprint {store.fingerprint[:8]}"


def overlapping_image_ids(first: RecordStore, second: RecordStore) -> np.ndarray:
    """(M,) int64, sorted: ids of the images with the same id and the same bytes in both stores."""
    ids, first_rows, second_rows = np.intersect1d(first.image_ids, second.image_ids, return_indices=True)
    same_bytes = (first.digests[first_rows] == second.digests[second_rows]).all(axis=1)
    return np.asarray(ids[same_bytes])


def find_repeated_image(stores: Sequence[AnyStore]) -> tuple[int, AnyStore, AnyStore] | None:
    """The id of an image that is in two of the stores with the same bytes, and these stores; None if there is none."""
    ids = np.concatenate([store.image_ids for store in stores])  # (N,)
    order = np.argsort(ids, kind="stable")
    same_ids = np.flatnonzero(ids[order[1:]] == ids[order[:-1]])  # positions in ``order``
    if not len(same_ids):
        return None
    digests = np.concatenate([store.digests for store in stores])
    first_rows = order[same_ids]
    second_rows = order[same_ids + 1]
    same_bytes = np.flatnonzero((digests[first_rows] == digests[second_rows]).all(axis=1))
    if not len(same_bytes):
        return None
    ends = np.cumsum([store.num_images for store in stores])
    first_row = first_rows[same_bytes[0]]
    second_row = second_rows[same_bytes[0]]
    first, second = np.searchsorted(ends, [first_row, second_row], side="right").tolist()
    return int(ids[first_row]), stores[first], stores[second]
