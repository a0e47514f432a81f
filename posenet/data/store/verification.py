"""Verifies a store by reading all of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from posenet.data.store.image_check import reduction_for_check
from posenet.data.store.reader import StoreSummary
from posenet.data.store.record_store import RecordStore
from posenet.data.store.schema import content_digest
from posenet.data.store.shards import open_store
from posenet.devices.background import map_in_background
from posenet.devices.cpu import usable_cores
from posenet.errors import DataError
from posenet.progress import progress_bar
from posenet.skeleton import Skeleton


def verify_store(
    path: str | Path | Sequence[str],
    *,
    skeleton: Skeleton | None = None,
    workers: int | None = None,
    progress: bool = False,
) -> StoreSummary:
    """Read a whole store: compare all digests and decode every image and mask.

    ``path`` may also name a store in several files; see ``open_store``. See ``Store`` for ``skeleton``. ``workers`` are
    threads; None means one per usable core.

    Raises:
        DataError: the store is damaged. The message counts the damaged images and names the first.
    """
    with open_store(path, skeleton) as store:
        return verify_opened_store(store, workers=workers, progress=progress)


def verify_opened_store(store: RecordStore, *, workers: int | None = None, progress: bool = False) -> StoreSummary:
    """Read a whole store that is open; see ``verify_store``."""
    workers = workers or usable_cores()
    digests = store.digests

    def find_damage(row: int) -> str | None:
        try:
            record = store.read_record(row)
            if not np.array_equal(content_digest(record.image_bytes), digests[row]):
                raise record.damage_error("is damaged: its bytes do not match the digest")
            size = record.height, record.width
            record.decode_image(reduction_for_check(record.image_bytes, *size, record.orientation))
            record.decode_masks()
        except DataError as error:
            return str(error)
        return None

    rows = range(store.num_images)
    with closing(map_in_background(find_damage, rows, workers=workers, ahead=4 * workers)) as results:
        results_with_bar = progress_bar(results, "verify", len(rows), disable=not progress)
        damages = [damage for damage in results_with_bar if damage is not None]
    if damages:
        raise DataError(f"{len(damages)} of {store.num_images} images are damaged; first: {damages[0]}")
    return store.summary()
