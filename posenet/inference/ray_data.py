"""Prediction of any number of images on any number of machines, by Ray Data (the extra ``ray``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from posenet.errors import DataError
from posenet.images import decode_image, to_bgr
from posenet.inference.predictor import Predictor


class PredictPeople:
    """A class for ``ray.data.Dataset.map_batches``: it loads a network once in each worker, and finds people.

    A batch is a dictionary of columns. The column ``image`` has images as ``ray.data.read_images`` makes them, uint8 or
    uint16: (H, W, 3) RGB, (H, W, 4) RGBA, (H, W) or (H, W, 1) grey. Or the column ``bytes`` has files as
    ``ray.data.read_binary_files`` reads them. That column is replaced by two columns of texts: ``people``, a list of
    people in JSON (see ``Person.to_dict``), and ``error``, why an image could not be read; empty if it could. Other
    columns stay. See docs/scale.md.

    Args:
        checkpoint: a checkpoint, an exported file or the name of registered weights, which every machine can read.
        options: those of ``Predictor.from_checkpoint``, such as ``device="cuda"`` and ``min_score``.
    """

    def __init__(self, checkpoint: str | Path, **options: Any) -> None:
        self._predictor = Predictor.from_checkpoint(checkpoint, **options)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Find the people in a batch.

        Raises:
            DataError: the batch has neither a column ``image`` nor a column ``bytes``, or an array is no image.
        """
        if "bytes" in batch:
            decoded = [_decode(data) for data in batch["bytes"]]
        elif "image" in batch:
            decoded = [to_bgr(image, "rgb") for image in batch["image"]]
        else:
            raise DataError(f"images must be in a column image or bytes, not {', '.join(batch)}")
        readable = [image for image in decoded if not isinstance(image, str)]
        people_of_images = iter(self._predictor.batch(readable))
        people = [[] if isinstance(image, str) else next(people_of_images) for image in decoded]
        columns = {name: values for name, values in batch.items() if name not in ("image", "bytes")}
        return columns | {
            "people": np.array([json.dumps([person.to_dict() for person in own]) for own in people], object),
            "error": np.array([image if isinstance(image, str) else "" for image in decoded], object),
        }


def _decode(data: bytes) -> np.ndarray | str:
    """The image in a file, (H, W, 3) uint8 BGR, upright; or why it cannot be decoded."""
    try:
        return decode_image(np.frombuffer(data, np.uint8))
    except ValueError as error:
        return str(error)
