"""Keypoints, body parts and output channels, all derived from keypoint names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True, repr=False)
class Skeleton:
    """What a network predicts and how an annotation file names it.

    Attributes:
        keypoints: K keypoint names, in channel order.
        parts: B body parts, each a pair of keypoint names, in channel order.
        left_right: pairs of names that a horizontal flip swaps.
        derived: keypoints that no file holds, each the middle of two others.
        file_keypoints: for every keypoint an annotation file holds, in file order, our name for it.
        file_names: the same keypoints as the file's ``categories`` spell them.
        sigmas: the OKS constant of every file keypoint, in file order.
        layout: for every keypoint, in somebody upright, how far it lies below the hips and how far it strays from
            there (root mean square, sideways included), in lengths of the torso. Empty where nothing is known.
        drawn: the pairs of keypoints that a drawing joins; where empty, all parts.
        colours: what a keypoint is drawn in, "#rrggbb"; others have the colour of their side.
    """

    keypoints: tuple[str, ...]
    parts: tuple[tuple[str, str], ...]
    left_right: tuple[tuple[str, str], ...]
    derived: dict[str, tuple[str, str]] = field(hash=False)
    file_keypoints: tuple[str, ...]
    file_names: tuple[str, ...]
    sigmas: tuple[float, ...]
    layout: dict[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    drawn: tuple[tuple[str, str], ...] = ()
    colours: dict[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        known = set(self.keypoints)
        used = {n for pair in self.parts + self.left_right + self.drawn for n in pair} | set(self.file_keypoints)
        used |= set(self.derived) | {n for pair in self.derived.values() for n in pair} | set(self.colours)
        if unknown := used - known:
            raise ValueError(f"skeleton names unknown keypoints: {', '.join(sorted(unknown))}")
        if missing := known - set(self.file_keypoints) - set(self.derived):
            raise ValueError(f"keypoints neither in the file nor derived: {', '.join(sorted(missing))}")
        if not len(self.file_keypoints) == len(self.file_names) == len(self.sigmas):
            raise ValueError("file_keypoints, file_names and sigmas differ in length")
        if self.layout and self.layout.keys() != known:
            raise ValueError("the layout names other keypoints than the skeleton")
        self._check_names()
        self._check_parts()

    def _check_names(self) -> None:
        if both := sorted(set(self.file_keypoints) & set(self.derived)):
            raise ValueError(f"keypoint {both[0]} is in the file and derived; it can be only one of them")
        if twice := _doubled(self.keypoints):
            raise ValueError(f"keypoint {twice[0]} appears twice")
        if late := [n for pair in self.derived.values() for n in pair if n in self.derived]:
            raise ValueError(f"a keypoint is derived from {late[0]}, itself derived; derive it from the file's")
        sides = [n for pair in self.left_right for n in pair]
        if twice := _doubled(sides):
            raise ValueError(f"keypoint {twice[0]} is in two pairs of left and right")
        if min(self.sigmas, default=1) <= 0:
            raise ValueError("sigmas must be positive")
        if min((spread for _, spread in self.layout.values()), default=1) <= 0:
            raise ValueError("the spreads of the layout must be positive")
        if wrong := [c for c in self.colours.values() if not re.fullmatch(r"#[0-9a-fA-F]{6}", c)]:
            raise ValueError(f"colour {wrong[0]!r} is not of the form #rrggbb")

    def _check_parts(self) -> None:
        parts: set[frozenset[str]] = set()
        for part in self.parts:
            if len(ends := frozenset(part)) < 2 or ends in parts:
                raise ValueError(f"part {'-'.join(part)} appears twice or joins a keypoint to itself")
            parts.add(ends)
        mirror = self._mirror
        for a, b in self.parts:
            if frozenset((mirror.get(a, a), mirror.get(b, b))) not in parts:
                raise ValueError(f"part {a}-{b} has no mirror image; add {mirror.get(a, a)}-{mirror.get(b, b)}")
        for name, (a, b) in self.derived.items():
            if {mirror.get(a, a), mirror.get(b, b)} != set(self.derived.get(mirror.get(name, name), ())):
                raise ValueError(f"derived keypoint {name} has no mirror image; see the left and right of {a} and {b}")

    def __repr__(self) -> str:
        return f"<Skeleton of {self.num_keypoints} keypoints ({self.keypoints[0]} ...), {self.num_parts} parts>"

    @property
    def num_keypoints(self) -> int:
        return len(self.keypoints)

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    @property
    def num_channels(self) -> int:
        """Body parts, keypoints, person mask, keypoint foreground."""
        return self.num_parts + self.num_keypoints + 2

    @property
    def part_channels(self) -> slice:
        return slice(0, self.num_parts)

    @property
    def keypoint_channels(self) -> slice:
        return slice(self.num_parts, self.num_parts + self.num_keypoints)

    @property
    def mask_channel(self) -> int:
        return self.num_channels - 2

    @property
    def foreground_channel(self) -> int:
        return self.num_channels - 1

    @property
    def least_labelled(self) -> int:
        """Labelled keypoints of the file that somebody must have to be trained on: 5 of COCO's 17, 5 at most."""
        return min(5, math.ceil(len(self.file_keypoints) * 5 / 17))

    @property
    def _mirror(self) -> dict[str, str]:
        return dict(self.left_right) | {b: a for a, b in self.left_right}

    def predicts_like(self, other: Skeleton) -> bool:
        """Whether a network for one is a network for the other: OKS constants, layout and drawing may differ."""
        names = ("keypoints", "parts", "left_right", "derived", "file_keypoints")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def index(self, name: str) -> int:
        """Channel-order index of the keypoint called ``name``."""
        return self.keypoints.index(name)

    @cached_property
    def part_ends(self) -> np.ndarray:
        """(B, 2) int64: the keypoint indices at both ends of every body part."""
        return np.array([[self.index(a), self.index(b)] for a, b in self.parts])

    @cached_property
    def flip_keypoints(self) -> np.ndarray:
        """(K,) int64: keypoint k of a flipped image is keypoint ``flip_keypoints[k]`` of the original."""
        mirror = self._mirror
        return np.array([self.index(mirror.get(name, name)) for name in self.keypoints])

    @cached_property
    def flip_channels(self) -> np.ndarray:
        """(C,) int64: channel c of a flipped image is channel ``flip_channels[c]`` of the original."""
        where = {frozenset(ends): i for i, ends in enumerate(map(tuple, self.part_ends.tolist()))}
        parts = [where[frozenset(self.flip_keypoints[list(ends)].tolist())] for ends in self.part_ends]
        keypoints = (self.num_parts + self.flip_keypoints).tolist()
        return np.array(parts + keypoints + [self.mask_channel, self.foreground_channel])

    @cached_property
    def _file_indices(self) -> list[int]:
        return [self.index(name) for name in self.file_keypoints]

    def from_file(self, keypoints: np.ndarray) -> np.ndarray:
        """Annotated keypoints to network keypoints.

        Args:
            keypoints: (P, F, 3) x, y in pixels and COCO visibility (0 not labelled, 1 hidden, 2 visible).

        Returns:
            (P, K, 3) float32. A derived keypoint is labelled when both its sources are, and as visible as
            the less visible one. Coordinates of unlabelled keypoints are 0.
        """
        joints = np.zeros((len(keypoints), self.num_keypoints, 3), np.float32)
        joints[:, self._file_indices] = keypoints
        for name, (a, b) in self.derived.items():
            first, second = joints[:, self.index(a)], joints[:, self.index(b)]
            joints[:, self.index(name), :2] = (first[:, :2] + second[:, :2]) / 2
            joints[:, self.index(name), 2] = np.minimum(first[:, 2], second[:, 2])
        joints[joints[..., 2] <= 0] = 0
        return joints

    def to_file(self, keypoints: np.ndarray) -> np.ndarray:
        """(..., K, 3) network keypoints to (..., F, 3) in the order of the annotation file."""
        return np.asarray(keypoints)[..., self._file_indices, :]


def _doubled(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
