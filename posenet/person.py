"""A person: the positions and the scores of the keypoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from posenet.skeleton import COCO, Skeleton


@dataclass(frozen=True, eq=False)
class Person:
    """One person found in an image. People are compared by value, without the estimates."""

    keypoints: np.ndarray
    """(K, 3) float32, in the skeleton's channel order: x and y in pixels of the image (the centre of the first pixel is
    (0, 0)) and a score. A keypoint that was not found has score 0."""
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

    @classmethod
    def from_coco(cls, keypoints: np.ndarray, score: float, skeleton: Skeleton = COCO) -> Person:
        """A person from (F, 3) x, y and score in the order of the annotation file, such as COCO's 17 keypoints."""
        if np.shape(keypoints) != (len(skeleton.file_keypoints), 3):
            raise ValueError(f"keypoints must be ({len(skeleton.file_keypoints)}, 3), not {np.shape(keypoints)}")
        joints = skeleton.to_network_order(np.asarray(keypoints, np.float32)[None])[0]
        return cls(joints, score, skeleton)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Person)
            and self.score == other.score
            and self.skeleton == other.skeleton
            and self.id == other.id
            and np.array_equal(self.keypoints, other.keypoints)
        )

    @property
    def found(self) -> np.ndarray:
        """(K,) bool: which keypoints were found."""
        return np.asarray(self.keypoints[:, 2] > 0)

    def named(self) -> dict[str, tuple[float, float, float]]:
        """x, y and score of the keypoints found, by name."""
        rows = zip(self.skeleton.keypoints, self.keypoints.tolist())
        return {name: (x, y, score) for name, (x, y, score) in rows if score > 0}

    def box(self) -> np.ndarray:
        """(4,) float32: left, top, right and bottom of the keypoints found, in pixels; zeros if there are none."""
        points = self.keypoints[self.found, :2]
        if not len(points):
            return np.zeros(4, np.float32)
        return np.concatenate([points.min(0), points.max(0)])

    def to_dict(self) -> dict[str, Any]:
        """The score, the box, the keypoints found by name (x, y, score) and the id, if any, in types of JSON."""
        keypoints = {name: list(values) for name, values in self.named().items()}
        entry = {"score": self.score, "box": self.box().tolist(), "keypoints": keypoints}
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
            estimates = self.estimates
            if estimates is None:
                estimates = np.repeat(self.keypoints[self.found, :2].mean(axis=0)[None], len(self.keypoints), axis=0)
            filled = np.where(self.found[:, None], self.keypoints[:, :2], estimates)
            keypoints[:, :2] = self.skeleton.to_file_order(filled)
        return {
            "image_id": image_id,
            "category_id": category,
            "keypoints": keypoints.round(3).ravel().tolist(),
            "score": self.score,
        }
