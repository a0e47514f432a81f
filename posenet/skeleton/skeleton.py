"""Keypoints, body parts and output channels, all derived from keypoint names; and mapping one skeleton to another."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, zip_longest

import numpy as np

from posenet.skeleton.known_names import canonical_names

PERSON = "person"
"""The category of COCO's people, whose plural messages know."""
SHOWN_NAMES = 3
"""Number of names that a message lists."""


@dataclass(frozen=True, repr=False)
class Skeleton:
    """The keypoints and body parts that a network predicts, and how annotation files name them.

    Attributes:
        keypoints: names of the K keypoints, in channel order.
        parts: B body parts, each a pair of keypoint names, in channel order.
        left_right: pairs of names that a horizontal flip swaps.
        mirror: whether mirrored images are used, in training and in prediction. False if nothing says which keypoints a
            flip swaps.
        derived: keypoints that annotation files lack, each computed as the midpoint of two that they contain.
        file_keypoints: the F keypoints in annotation files, in their order, under our names.
        file_names: the same keypoints under the names in the ``categories`` of annotation files. Only annotation files
            have these names; everything else has those of ``keypoints``.
        sigmas: the OKS constants of the same keypoints.
        layout: for every keypoint, (height, spread) in an upright body, in lengths of the torso. Height is the mean
            distance below the hips; spread is the root mean square distance from the point of the body's axis at that
            height. Empty if unknown.
        drawn: the pairs of keypoints that drawings join; if empty, all parts.
        colours: colours "#rrggbb" of keypoints in drawings; other keypoints have the colour of their side.
        category: what the objects are, for messages. It does not count where skeletons are compared.
        category_id: the number of the category in the annotations, for results; it does not count either.

    Raises:
        ValueError: the fields contradict each other.
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
    category: str = field(default=PERSON, compare=False)
    category_id: int = field(default=1, compare=False)
    mirror: bool = True

    def __post_init__(self) -> None:
        known, in_file, derived = set(self.keypoints), set(self.file_keypoints), self.derived.keys()
        pairs = (*self.parts, *self.left_right, *self.drawn, *self.derived.values())
        used = in_file | derived | self.colours.keys() | set(chain.from_iterable(pairs))
        mirror = {name: name for name in used} | self._twin_of
        num_parts = Counter(map(frozenset, self.parts))
        mirrored_parts = [(mirror[a], mirror[b]) for a, b in self.parts]
        mirrored = {mirror[name]: {mirror[a], mirror[b]} for name, (a, b) in self.derived.items()}
        spreads = {name: spread for name, (_, spread) in self.layout.items()}
        faults: dict[str, Iterable[str]] = {
            "unknown keypoints": used - known,
            "keypoints neither in the file nor derived": known - in_file - derived,
            "keypoints in the file and derived": in_file & derived,
            "keypoints that appear twice": _repeated(self.keypoints),
            "keypoints in two pairs of left and right": _repeated(chain.from_iterable(self.left_right)),
            "keypoints derived from a derived one": [name for name, pair in self.derived.items() if derived & {*pair}],
            "parts that appear twice or join a keypoint to itself": [
                "-".join(part) for part in self.parts if len({*part}) < 2 or num_parts[frozenset(part)] > 1
            ],
            "missing mirror images": ["-".join(ends) for ends in mirrored_parts if not num_parts[frozenset(ends)]],
            "derived keypoints without a mirror image": [
                name for name, pair in self.derived.items() if mirrored.get(name) != {*pair}
            ],
            "the layout has other keypoints": known ^ spreads.keys() if spreads else (),
            "spreads of the layout not above 0": [name for name, spread in spreads.items() if spread <= 0],
            "sigmas not above 0": [name for name, sigma in zip(self.file_keypoints, self.sigmas) if sigma <= 0],
            "colours not of the form #rrggbb": [
                colour for colour in self.colours.values() if not re.fullmatch(r"#[0-9a-fA-F]{6}", colour)
            ],
        }
        for fault, names in faults.items():
            if names:
                raise ValueError(f"{fault}: {', '.join(sorted(names))}")
        if not len(self.file_keypoints) == len(self.file_names) == len(self.sigmas):
            raise ValueError("file_keypoints, file_names and sigmas differ in length")

    def __repr__(self) -> str:
        return f"<Skeleton of {self.num_keypoints} keypoints ({self.keypoints[0]} ...), {self.num_parts} parts>"

    @property
    def num_keypoints(self) -> int:
        return len(self.keypoints)

    @property
    def people(self) -> str:
        """What its objects are called in tables and headings: "people", or the category."""
        return "people" if self.category == PERSON else self.category

    def name_objects(self, text: str) -> str:
        """A text about people, with the category in their place."""
        if self.category == PERSON:
            return text
        return re.sub(r"\b([Pp]erson|[Pp]eople)\b", lambda _: self.category, text)

    def count(self, number: int, adjective: str = "") -> str:
        """So many objects, in words."""
        return f"{number} {noun_of(number, self.category, adjective)}"

    @property
    def num_parts(self) -> int:
        return len(self.parts)

    @property
    def num_channels(self) -> int:
        """Output channels: body parts, keypoints, person mask, keypoint foreground."""
        return self.num_parts + self.num_keypoints + 2

    @property
    def part_channels(self) -> slice:
        return slice(0, self.num_parts)

    @property
    def keypoint_channels(self) -> slice:
        return slice(self.num_parts, self.num_parts + self.num_keypoints)

    @property
    def num_decoded_channels(self) -> int:
        """Body parts and keypoints: the first channels, from which people are decoded."""
        return self.num_parts + self.num_keypoints

    @property
    def min_labelled_keypoints(self) -> int:
        """Keypoints of the file that must be labelled in a main person: 5 of COCO's 17, and never more than 5."""
        return min(5, math.ceil(len(self.file_keypoints) * 5 / 17))

    @property
    def _twin_of(self) -> dict[str, str]:
        """The name of every keypoint in a mirrored image."""
        return {name: name for name in self.keypoints} | twins(self.left_right)

    def changes_of_network(self, other: "Skeleton") -> tuple[str, ...]:
        """The names of what the other skeleton has differently and a network depends on."""
        names = ("keypoints", "parts", "left_right", "derived", "file_keypoints")
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))

    def describe_channels(self) -> list[list[str]]:
        """What each output channel shows: its kind, and the names of its keypoints if it has any."""
        return [
            *(["body part", *names] for names in self.parts),
            *(["keypoint", name] for name in self.keypoints),
            ["person mask"],
            ["keypoint foreground"],
        ]

    def different_channels(self, other: "Skeleton") -> str:
        """How the keypoints, or else the body parts, differ from those of another skeleton; see ``compare_names``."""
        parts, other_parts = (list(map("-".join, skeleton.parts)) for skeleton in (self, other))
        return compare_names(self.keypoints, other.keypoints) or compare_names(parts, other_parts)

    def index(self, name: str) -> int:
        """The channel of a keypoint among ``keypoints``; ``ValueError`` if there is none with this name."""
        if name in self.keypoints:
            return self.keypoints.index(name)
        raise ValueError(f"the skeleton has no keypoint {name!r}, only {', '.join(self.keypoints)}")

    @cached_property
    def part_ends(self) -> np.ndarray:
        """(B, 2) int64: the indices of both keypoints of every body part."""
        return np.array([[self.index(a), self.index(b)] for a, b in self.parts], np.int64).reshape(-1, 2)

    @cached_property
    def flip_keypoints(self) -> np.ndarray:
        """(K,) int64: keypoint k of a flipped image is keypoint ``flip_keypoints[k]`` of the original."""
        mirror = self._twin_of
        return np.array([self.index(mirror[name]) for name in self.keypoints])

    @cached_property
    def flip_channels(self) -> np.ndarray:
        """(C,) int64: channel c of a flipped image is channel ``flip_channels[c]`` of the original."""
        mirror = self._twin_of
        part_index = {frozenset(part): index for index, part in enumerate(self.parts)}
        parts = [part_index[frozenset((mirror[a], mirror[b]))] for a, b in self.parts]
        keypoints = (self.num_parts + self.flip_keypoints).tolist()
        return np.array([*parts, *keypoints, self.num_channels - 2, self.num_channels - 1])

    @cached_property
    def _file_indices(self) -> list[int]:
        return [self.index(name) for name in self.file_keypoints]

    def to_network_order(self, keypoints: np.ndarray) -> np.ndarray:
        """Convert (P, F, 3) keypoints in the order of annotation files to (P, K, 3) float32 in channel order.

        They are x, y in pixels and COCO visibility (0 not labelled, 1 hidden, 2 visible). A derived keypoint is
        labelled if both of its sources are, and as visible as the less visible one. Unlabelled ones are at (0, 0).
        """
        joints = np.zeros((len(keypoints), self.num_keypoints, 3), np.float32)
        joints[:, self._file_indices] = keypoints
        self.fill_derived(joints, self.derived)
        joints[joints[..., 2] <= 0] = 0
        return joints

    def fill_derived(self, joints: np.ndarray, names: Iterable[str]) -> None:
        """Compute the derived keypoints with these names in (P, K, 3) joints in channel order, in place."""
        for name in names:
            a, b = self.derived[name]
            first = joints[:, self.index(a)]
            second = joints[:, self.index(b)]
            middle = joints[:, self.index(name)]
            middle[:, :2] = (first[:, :2] + second[:, :2]) / 2
            middle[:, 2] = np.minimum(first[:, 2], second[:, 2])

    def to_file_order(self, keypoints: np.ndarray) -> np.ndarray:
        """Convert (..., K, 3) keypoints in channel order to (..., F, 3) in the order of annotation files."""
        return np.asarray(keypoints)[..., self._file_indices, :]


def noun_of(number: int, category: str, adjective: str = "") -> str:
    """What stands after the number of objects of a category: "person", "tracked people"; "x bird" for others."""
    noun = "person" if number == 1 else "people"
    words = ["x", adjective, category] if category != PERSON else [adjective, noun]
    return " ".join(filter(None, words))


def compare_names(names: Sequence[str], expected: Sequence[str]) -> str:
    """What a list has that differs from the expected names, for messages; empty if both are the same."""
    if tuple(names) == tuple(expected):
        return ""
    texts = {
        "no": [repr(name) for name in expected if name not in names],
        "also": [repr(name) for name in names if name not in expected],
    }
    name, other = next(pair for pair in zip_longest(names, expected, fillvalue="") if pair[0] != pair[1])
    other_order = f"the same names in another order or number: {name!r}, not {other!r}"
    return " and ".join(f"{word} {list_names(own)}" for word, own in texts.items() if own) or other_order


def list_names(texts: Sequence[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(texts) - SHOWN_NAMES
    return ", ".join(texts[:SHOWN_NAMES]) + (f" (+{more} more)" if more > 0 else "")


def twins(left_right: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The right name of each left name and the left name of each right one."""
    pairs = list(left_right)
    return dict(pairs) | {right: left for left, right in pairs}


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


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
