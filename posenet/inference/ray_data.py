"""Prediction of any number of images on any number of machines, by Ray Data (the extra ``ray``)."""

from pathlib import Path
from typing import Any

import numpy as np

from posenet.errors import DataError
from posenet.images import decode_reduced_image, to_bgr
from posenet.inference.media.frames import IN_MEMORY, Frame
from posenet.inference.predictor import Predictor


class PredictPeople:
    """A class for ``ray.data.Dataset.map_batches``: it loads a network once in each worker, and finds people.

    A batch is a dictionary of columns. The column ``image`` has images as ``ray.data.read_images`` makes them, uint8 or
    uint16: (H, W, 3) RGB, (H, W, 4) RGBA, (H, W) or (H, W, 1) grey. Or the column ``bytes`` has files as
    ``ray.data.read_binary_files`` reads them. That column is replaced by two columns of texts: ``people``, a list of
    people in JSON (see ``Person.to_dict``), and ``error``, why an image could not be read; empty if it could. Other
    columns stay. See docs/scale.md.

    Args:
        checkpoint: a checkpoint, an exported file or the name of published weights, which every machine can read.
        options: those of ``Predictor``, such as ``device="cuda"`` and ``min_score``.
    """

    def __init__(self, checkpoint: str | Path, **options: Any) -> None:
        self._predictor = Predictor(checkpoint, **options)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Find the people in a batch; ``DataError`` if it has neither column, or an array is no image."""
        if "bytes" in batch:
            frames = [_decode(data, self._predictor) for data in batch["bytes"]]
        elif "image" in batch:
            frames = [Frame(IN_MEMORY, to_bgr(image, "rgb")) for image in batch["image"]]
        else:
            raise DataError(f"images must be in a column image or bytes, not {', '.join(batch)}")
        results = list(self._predictor.find_people(frame for frame in frames))
        columns = {name: values for name, values in batch.items() if name not in ("image", "bytes")}
        return columns | {
            "people": np.array([result.to_json() for result in results], object),
            "error": np.array([str(result.error or "") for result in results], object),
        }


def _decode(data: bytes, predictor: Predictor) -> Frame:
    """The image in a file, upright; with an error if it cannot be decoded."""
    try:
        image, size = decode_reduced_image(np.frombuffer(data, np.uint8), predictor.reduction_of)
        return Frame(IN_MEMORY, image, whole_size=size)
    except ValueError as error:
        return Frame(IN_MEMORY, error=DataError(str(error)))
