"""A person: the positions and the scores of the keypoints."""

import math
import numbers
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posenet.messages import truncate_for_message
from posenet.skeleton import COCO, Skeleton

MAX_COORDINATE = 1e6
"""Keypoints at larger coordinates count as not found: the fixed-point numbers that OpenCV draws with would overflow."""


@dataclass(frozen=True, eq=False, repr=False)
class Person:
    """One person found in an image. People are compared by value, without the estimates.

    Raises:
        ValueError: an array has another shape than stated below or is not one of numbers, or the score is not finite.
        TypeError: the score is not a number, or the id not an integer.
    """

    keypoints: np.ndarray
    """(K, 3) float32, in the skeleton's channel order: x and y in pixels of the image (the centre of the first pixel is
    (0, 0)) and a score. A keypoint that was not found has score 0. So have those that are not finite, a million pixels
    away, or exactly at (0, 0), where other programs put what they have not found."""
    score: float
    """For ranking people. It grows with the scores and with the number of the keypoints found."""
    skeleton: Skeleton = COCO
    """Meaning of the rows of ``keypoints``."""
    id: int | None = None
    """The person's number in a video, from 1; see ``posenet.Tracker``. None for a person who is not tracked."""
    estimates: np.ndarray | None = None
    """(K, 2) float32: where the keypoints that were not found most likely are, in pixels of the image; 0 in rows of the
    others. None for a person who does not come from the decoder. COCO compares the positions of all keypoints, so that
    results for COCO contain these (``to_coco_result``)."""

    def __post_init__(self) -> None:
        count = self.skeleton.num_keypoints
        # A frozen class has no other way to set its fields.
        rows = _without_unfound(_to_float32(self.keypoints, (count, 3), "keypoints"))
        object.__setattr__(self, "keypoints", rows)
        object.__setattr__(self, "score", float(self.score))
        if not math.isfinite(self.score):
            raise ValueError(f"score must be finite, not {self.score}")
        if self.id is not None:
            object.__setattr__(self, "id", operator.index(self.id))
        if self.estimates is not None:
            object.__setattr__(self, "estimates", _to_float32(self.estimates, (count, 2), "estimates"))

    @classmethod
    def from_coco(cls, keypoints: Any, score: float, skeleton: Skeleton = COCO, id: int | None = None) -> "Person":
        """A person from keypoints in the order of the annotation file, the inverse of ``to_coco``.

        ``keypoints`` are (F, 3) x, y and score, such as COCO's 17, or the 3 F numbers in a row that a results or an
        annotation file has. Those with the score, or the visibility, 0 count as not found. Derived keypoints, such as
        the neck, are computed. ``ValueError`` if they have another shape, or are not numbers.
        """
        shape = (len(skeleton.file_keypoints), 3)
        if isinstance(keypoints, (Sequence, np.ndarray)) and len(keypoints) == math.prod(shape):
            keypoints = np.reshape(keypoints, shape)  # the row of a file
        rows = _without_unfound(_to_float32(keypoints, shape, "keypoints"))
        return cls(skeleton.to_network_order(rows[None])[0], score, skeleton, id)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Person)
            and self.score == other.score
            and self.skeleton == other.skeleton
            and self.id == other.id
            and np.array_equal(self.keypoints, other.keypoints)
        )

    def __hash__(self) -> int:
        return hash((self.score, self.id))  # without the array, which may be changed

    def __repr__(self) -> str:
        count = np.count_nonzero(self.skeleton.to_file_order(self.keypoints)[:, 2] > 0)
        box = " ".join(f"{value:.0f}" for value in self.box.tolist())
        number = "" if self.id is None else f"id {self.id}, "
        total = len(self.skeleton.file_keypoints)
        return f"Person({number}score {self.score:.2f}, {count} of {total} keypoints, box {box})"

    @property
    def found(self) -> np.ndarray:
        """(K,) bool: which keypoints were found."""
        return np.asarray(self.keypoints[:, 2] > 0)

    def named(self) -> dict[str, tuple[float, float, float]]:
        """x, y and score of the keypoints found, by name, such as "left_wrist"."""
        rows = zip(self.skeleton.keypoints, self.keypoints.tolist())
        return {name: (x, y, score) for name, (x, y, score) in rows if score > 0}

    @property
    def box(self) -> np.ndarray:
        """(4,) float32: left, top, right and bottom of the keypoints found, in pixels; zeros if there are none."""
        points = self.keypoints[self.found, :2]
        return np.concatenate([points.min(0), points.max(0)]) if len(points) else np.zeros(4, np.float32)

    def to_dict(self) -> dict[str, Any]:
        """The score, the box, the keypoints found by name (x, y, score) and the id, if any, in types of JSON."""
        keypoints = {name: list(values) for name, values in self.named().items()}
        entry = {"score": self.score, "box": self.box.tolist(), "keypoints": keypoints}
        return entry if self.id is None else entry | {"id": self.id}

    def to_coco(self) -> np.ndarray:
        """(F, 3) float32: x, y and score in the order of the annotation file, 17 rows for COCO."""
        return self.skeleton.to_file_order(self.keypoints)

    def to_coco_result(self, image_id: int | str, category: int = 1, *, fill_missing: bool = False) -> dict[str, Any]:
        """An entry of a COCO results file. Keypoints that were not found have score 0.

        They are at (0, 0), or with ``fill_missing`` at ``estimates``, or at the mean of the keypoints found if there
        are no estimates: COCO compares the positions of all keypoints, and ignores their scores.
        """
        keypoints = self.to_coco().astype(float)
        if fill_missing and self.found.any():
            estimates = self.keypoints[self.found, :2].mean(axis=0) if self.estimates is None else self.estimates
            filled = np.where(self.found[:, None], self.keypoints[:, :2], estimates)
            keypoints[:, :2] = self.skeleton.to_file_order(filled)
        return {
            "image_id": int(image_id) if isinstance(image_id, numbers.Integral) else image_id,  # NumPy's are no JSON
            "category_id": category,
            "keypoints": keypoints.round(3).ravel().tolist(),
            "score": self.score,
        }


def require_people(values: Any) -> list[Person]:
    """The people of a list or a result, or one person, as a list; ``ValueError`` if they are something else."""
    try:
        people = [values] if isinstance(values, Person) else list(values)
    except TypeError:
        people = [values]
    for person in people:
        if not isinstance(person, Person):
            kind = type(person).__name__
            raise ValueError(f"people must be Person objects, not {kind}; Person.from_coco makes them of keypoints")
    return people


def _without_unfound(rows: np.ndarray) -> np.ndarray:
    """(F, 3) keypoints in which those that are not finite, at (0, 0) or too far away are 0; the same array if none."""
    is_within = (np.abs(rows) < MAX_COORDINATE).all(axis=1)  # False for NaN
    is_lost = ~is_within | ((rows[:, 2] != 0) & (rows[:, :2] == 0).all(axis=1))
    return np.where(is_lost[:, None], np.float32(0), rows) if is_lost.any() else rows


def _to_float32(values: Any, shape: tuple[int, int], name: str) -> np.ndarray:
    """The values as a float32 array, the same object if they are one."""
    meaning = "x, y and score" if shape[1] == 3 else "x and y"
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths, or a tensor on a GPU or with a gradient
        array = np.empty(0, object)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be {shape} numbers, {meaning}, not {truncate_for_message(values)}")
    if array.shape != shape:
        raise ValueError(f"{name} must be {shape}, {meaning}, not {array.shape}")
    return np.asarray(array, np.float32)
