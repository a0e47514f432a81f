"""The people in one image, with the image and where it comes from."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np

from posenet.errors import DataError
from posenet.images import write_image
from posenet.inference.media.frames import Frame
from posenet.person import Person
from posenet.skeleton import COCO, Skeleton
from posenet.visualization.drawing import KEYPOINT_MIN_SCORE, Drawing, draw_people


@dataclass(frozen=True, eq=False, repr=False)
class Result(Sequence[Person]):
    """The people in an image or in a frame of a video, highest score first; a sequence of them, equal to a list."""

    frame: Frame
    """The image, where it comes from, and why it could not be read if it could not."""
    people: Sequence[Person] = ()
    skeleton: Skeleton = COCO
    """Meaning of the keypoints."""
    maps: np.ndarray | None = None
    """(C, h, w) float32 maps of the network without padding; None unless the predictor keeps them."""
    best_score: float = 0.0
    """Highest score in the image, also if it is below ``min_score``; 0 if there is nothing like a person."""

    @overload
    def __getitem__(self, index: int) -> Person: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Person]: ...
    def __getitem__(self, index: int | slice) -> Person | Sequence[Person]:
        return self.people[index]

    def __len__(self) -> int:
        return len(self.people)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Result, list, tuple)) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __str__(self) -> str:
        """Where the image comes from, its width and height, and the number of people; or why it could not be read."""
        if self.error is not None:
            return str(self.error)
        name = self.frame.source.name
        if self.frame.number is not None:
            name += f", frame {self.frame.number}"
        height, width = self.frame.size
        return f"{name}: {width} x {height}, {self.skeleton.count(len(self))}"

    def __repr__(self) -> str:
        return f"<Result {self}>"

    @property
    def keypoints(self) -> np.ndarray:
        """(N, K, 3) float32: x and y in pixels of the image, and a score, which is 0 where a keypoint was not found."""
        empty = np.empty((0, self.skeleton.num_keypoints, 3), np.float32)
        return np.stack([person.keypoints for person in self]) if self.people else empty

    @property
    def scores(self) -> np.ndarray:
        """(N,) float32 scores of the people, 0-1."""
        return np.array([person.score for person in self], np.float32)

    @property
    def boxes(self) -> np.ndarray:
        """(N, 4) float32: left, top, right and bottom of the keypoints found, in pixels of the image."""
        return np.array([person.box for person in self], np.float32).reshape(-1, 4)

    @property
    def ids(self) -> list[int | None]:
        """The number of each person in a tracked video; None for people who are not tracked."""
        return [person.id for person in self]

    @property
    def image(self) -> np.ndarray:
        """(H, W, 3) uint8 BGR, upright; empty if it could not be read."""
        return self.frame.image

    @property
    def path(self) -> str | None:
        """The file or the address that was read, or ``camera 0``; None for an image in memory."""
        return None if self.frame.source.kind == "memory" else self.frame.source.name

    @property
    def seconds(self) -> float | None:
        """The time of a frame since the first one of its video; None for an image."""
        return None if self.frame.number is None else self.frame.seconds

    @property
    def error(self) -> DataError | None:
        """Why the image could not be read; then there are no people. None if it could be read."""
        return self.frame.error

    def plot(self, **options: Any) -> Drawing:
        """A drawing of the people, (H, W, 3) uint8 BGR, as of ``draw_people``; ``DataError`` if there is no image."""
        if self.error is not None:
            raise self.error
        return draw_people(self.image, self.people, **({"keypoint_min_score": KEYPOINT_MIN_SCORE} | options))

    def save(self, path: str | Path, **options: Any) -> None:
        """Write the drawing of ``plot`` to an image file, which is replaced if it exists.

        ``DataError`` if the file is the image itself, or its format cannot be written.
        """
        source = self.frame.source.path
        if source is not None and os.path.exists(path) and os.path.samefile(path, source):
            raise DataError(f"{path} is the image that the people were found in; choose another name for the drawing")
        write_image(path, self.plot(**options))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The people as ``Person.to_dict`` describes them; for pandas, a list of rows."""
        return [person.to_dict() for person in self]

    def to_json(self) -> str:
        """``to_dicts`` as JSON text."""
        return json.dumps(self.to_dicts())

    def to_coco(self, image_id: int | str, category: int = 1) -> list[dict[str, Any]]:
        """The people in COCO's results format; keypoints that were not found are at (0, 0)."""
        return [person.to_coco_result(image_id, category) for person in self]
