"""Compares stores: the images that two stores share, and whether they have the same content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posenet.data.store.reader import Store


class SharedImages(NamedTuple):
    """The images that two stores share."""

    ids: np.ndarray
    """(M,) int64: ids that both stores have; the bytes of these images may differ."""
    contents: np.ndarray
    """(L, 2) int64: ids in the first and in the second store of images with the same bytes; the ids may differ."""


def find_shared_images(first: Store, second: Store) -> SharedImages:
    """Compare two stores by image id and by the bytes of the images."""
    first_ids = {digest.tobytes(): image_id for digest, image_id in zip(first.digests, first.image_ids.tolist())}
    pairs = []
    for digest, image_id in zip(second.digests, second.image_ids.tolist()):
        first_id = first_ids.get(digest.tobytes())
        if first_id is not None:
            pairs.append((first_id, image_id))
    return SharedImages(np.intersect1d(first.image_ids, second.image_ids), np.array(pairs, np.int64).reshape(-1, 2))


def describe_content(store: Store) -> str:
    """The content of a store in a few words, the same for two stores only if all their images and people are.

    The fingerprint covers all arrays, and these contain a digest of every image.
    """
    return f"{store.num_images} images and {len(store)} samples with the fingerprint {store.fingerprint[:8]}"


def overlapping_image_ids(first: Store, second: Store) -> np.ndarray:
    """(M,) int64, sorted: ids of the images with the same id and the same bytes in both stores."""
    ids, first_rows, second_rows = np.intersect1d(first.image_ids, second.image_ids, return_indices=True)
    same_bytes = (first.digests[first_rows] == second.digests[second_rows]).all(axis=1)
    return np.asarray(ids[same_bytes])
