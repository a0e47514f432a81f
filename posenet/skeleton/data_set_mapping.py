"""Mapping the keypoints of a data set to those of a network by their names."""

from __future__ import annotations

import numpy as np

from posenet.skeleton.known_names import canonical_names
from posenet.skeleton.skeleton import Skeleton


class KeypointMapping:
    """Converts joints of one skeleton, ``source``, to those of another, ``target``.

    A keypoint of the target is the one of the source that has its name, or else its name in annotation files, or else
    its canonical name: "Right Shoulder" is right_shoulder. A derived keypoint of the target, such as the neck, is
    computed if the source has both of the keypoints that it lies between.

    Attributes:
        has_common_keypoints: whether the target has a keypoint of the source.
        missing: keypoints of the target that the source lacks, in channel order.
        ignored: keypoints of the source that the target lacks.
    """

    def __init__(self, source: Skeleton, target: Skeleton) -> None:
        self.target = target
        file_names = dict(zip(target.file_keypoints, target.file_names))
        row_of_name = {
            **{name: source.index(keypoint) for name, keypoint in zip(source.file_names, source.file_keypoints)},
            **{name: row for row, name in enumerate(source.keypoints)},
        }
        row_of_canonical = {name: row for row, name in enumerate(canonical_names(source.keypoints, source.category))}
        self._rows: dict[str, int] = {}  # the source's row of every keypoint of the target that it has
        for keypoint, canonical in zip(target.keypoints, canonical_names(target.keypoints, target.category)):
            row = row_of_name.get(keypoint, row_of_name.get(file_names.get(keypoint, "")))
            if row is None and keypoint not in target.derived:
                row = row_of_canonical.get(canonical)
            if row is not None and row not in self._rows.values():
                self._rows[keypoint] = row
        self.has_common_keypoints = bool(self._rows)
        self._derived = [name for name, pair in target.derived.items() if set(pair) <= self._rows.keys()]
        self._target_rows = [target.index(name) for name in self._rows]
        self._source_rows = list(self._rows.values())
        known = self._rows.keys() | set(self._derived)
        self.missing = tuple(name for name in target.keypoints if name not in known)
        self.ignored = tuple(name for row, name in enumerate(source.keypoints) if row not in self._source_rows)

    def map_joints(self, joints: np.ndarray) -> np.ndarray:
        """Convert (P, K_source, 3) joints to (P, K_target, 3) float32; missing keypoints are zeros: not labelled."""
        mapped = np.zeros((len(joints), self.target.num_keypoints, 3), np.float32)
        mapped[:, self._target_rows] = joints[:, self._source_rows]
        self.target.fill_derived(mapped, self._derived)
        mapped[mapped[..., 2] <= 0] = 0
        return mapped

    def supervised_channels(self) -> np.ndarray:
        """(C,) uint8, 1 for the output channels of the target that joints of the source determine.

        These are the keypoints that the source has, the body parts between two of them, and the person mask. The
        keypoint foreground, the maximum over all keypoint maps, is determined only if no keypoint is missing.
        """
        keypoints = np.array([name not in self.missing for name in self.target.keypoints])  # (K,)
        parts = keypoints[self.target.part_ends].all(axis=1)  # (B,)
        return np.concatenate([parts, keypoints, [True, keypoints.all()]]).astype(np.uint8)
