"""The result of a diagnosis: plain data about one results file, and about several compared with the first.

Coordinates are pixels of the image as stored. Keypoints are in the order of the annotation file (``Skeleton.
file_names``): F of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.outcome import Outcome
from posenet.skeleton import Skeleton

KINDS = ("good", "jitter", "inversion", "swap", "miss")
"""What a keypoint of a matched result can be. All but the first are localisation errors."""
CORRECTIONS = ("miss", "swap", "inversion", "jitter", "score", "background", "missed")
"""The kinds of errors in the order in which they are corrected one after the other."""
UNCORRECTED = "uncorrected"
"""The results as they are, where they stand beside the corrected ones."""
OKS_THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""COCO's OKS thresholds, 0.50, 0.55 ... 0.95: the order of every array of ten numbers."""
RECALLS = tuple(step / 100 for step in range(101))
"""The recalls at which COCO samples the precision: 0, 0.01 ... 1."""

Counts = dict[str, int]
"""A number of keypoints for each of ``KINDS``."""


@dataclass(frozen=True, eq=False)
class TruePerson:
    """An annotated person with at least one labelled keypoint."""

    keypoints: np.ndarray
    """(F, 3) x, y and COCO visibility: 0 not labelled, 1 hidden, 2 visible."""
    box: tuple[float, float, float, float]
    """x, y, width, height."""
    area: float
    """Square pixels."""
    size: str
    """``small`` (area below 32^2), ``medium`` (up to 96^2) or ``large``."""
    labelled: int
    """Number of labelled keypoints."""
    crowding: int
    """Number of other people whose boxes overlap with this one, IoU > 0.1."""
    truncated: bool
    """Whether the box or a labelled keypoint touches or leaves the border of the image."""
    hidden: float
    """Share of hidden keypoints among the labelled ones, 0-1."""
    result: int | None
    """Index in ``ImageDiagnosis.results`` of the result that matches at OKS 0.1; None if there is none."""
    oks: float
    """OKS of that result; 0 without one."""
    missed: bool
    """Whether no result matches at OKS 0.5."""


@dataclass(frozen=True, eq=False)
class FoundPerson:
    """One entry of the results file."""

    keypoints: np.ndarray
    """(F, 3) x, y and the third value of the results file, which COCO ignores."""
    score: float
    person: int | None
    """Index in ``ImageDiagnosis.people`` of the person whom it matches at OKS 0.1; None if there is none."""
    oks: float
    """OKS with that person; without one, the highest OKS with any person of the image, 0 if there are no people."""
    true_oks: float
    """Its score in a ranking by true OKS: the OKS with the person whom it fits best of all results, 0 without one."""
    kinds: tuple[str | None, ...]
    """For every keypoint one of ``KINDS``; None where the matched person's keypoint is not labelled, and everywhere in
    a result without a match."""
    background: bool
    """Whether it matches nobody at OKS 0.5: a false positive."""
    ignored: bool
    """Whether it matches a crowd region or an unlabelled person at OKS 0.5. COCO counts it neither as right nor as
    wrong."""


@dataclass(frozen=True, eq=False)
class ImageDiagnosis:
    """One image: who is there, and who was found."""

    id: int
    file_name: str
    """Path relative to the image folder. It comes from the annotation file: escape it in HTML."""
    width: int
    height: int
    people: Sequence[TruePerson]
    results: Sequence[FoundPerson]
    """By descending score, at most 20, as in the COCO evaluation."""
    ignored_boxes: Sequence[tuple[float, float, float, float]]
    """x, y, width, height of the crowd regions and of the people without labelled keypoints."""

    @property
    def oks(self) -> float:
        """Mean OKS of the people with their matched results, 0 for people without one; 1 in an image without people."""
        if not self.people:
            return 1.0
        return sum(person.oks for person in self.people) / len(self.people)


@dataclass(frozen=True)
class Slice:
    """People with something in common, such as a size."""

    name: str
    """For people to read, such as ``medium``, ``1-2`` or ``truncated``."""
    people: int
    """Number of labelled people."""
    ap: float
    """AP of these people; -1 if there are none."""
    counts: Counts
    """Kinds of the keypoints of these people's matched results."""
    missed: int
    """How many of these people no result matches at OKS 0.5."""


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Everything that is known about one results file. ``posenet.diagnosis.diagnose`` documents the definitions."""

    name: str
    """How the report calls the results: the name of their file. Escape it in HTML."""
    skeleton: Skeleton
    """Its ``file_names`` name the keypoints."""
    metrics: Mapping[str, float]
    """COCO's ten keypoint metrics, ``AP``, ``AP50`` ... ``ARL``; -1 without people of that size."""
    ap_by_threshold: np.ndarray
    """(10,) AP at each OKS threshold."""
    counts: Counts
    """Kinds of all labelled keypoints of matched people."""
    keypoints: Mapping[str, Counts]
    """The same for every keypoint, by its name in the annotation file, such as ``left_wrist``."""
    corrected: Mapping[str, float]
    """AP after correcting each of ``CORRECTIONS`` and all before it."""
    alone: Mapping[str, float]
    """AP after correcting each of ``CORRECTIONS`` and nothing else."""
    corrected_by_threshold: Mapping[str, np.ndarray]
    """``corrected`` at each OKS threshold: (10,) each."""
    alone_by_threshold: Mapping[str, np.ndarray]
    """``alone`` at each OKS threshold: (10,) each."""
    precision: Mapping[str, np.ndarray]
    """(10, 101) precision at each OKS threshold and each of ``RECALLS``: of the results as they are (``UNCORRECTED``),
    and at every stage of ``corrected``. The area between two stages is the AP that a kind of error costs."""
    background_by_threshold: np.ndarray
    """(10,) number of results that match nobody at each OKS threshold."""
    missed_by_threshold: np.ndarray
    """(10,) number of labelled people whom no result matches at each OKS threshold."""
    sensitivity: Mapping[str, Sequence[Slice]]
    """The people sliced by ``size``, ``labelled keypoints``, ``crowding``, ``truncation`` and ``occlusion``."""
    images: Sequence[ImageDiagnosis]
    """All images of the annotation file, in its order."""
    outcome: Outcome | None = None
    """What the COCO evaluation decides about every result at each OKS threshold, from which ``compare`` resamples."""
    perfect_grouping: Mapping[str, float] | None = None
    """COCO's metrics if the network's keypoint candidates are grouped by the annotations; None without a network."""

    @property
    def ap(self) -> float:
        return self.metrics["AP"]

    @property
    def background(self) -> int:
        """Number of results that match nobody at OKS 0.5."""
        return int(self.background_by_threshold[0])

    @property
    def missed(self) -> int:
        """Number of labelled people whom no result matches at OKS 0.5."""
        return int(self.missed_by_threshold[0])

    @property
    def num_people(self) -> int:
        """Number of labelled people."""
        return sum(len(image.people) for image in self.images)

    @property
    def num_results(self) -> int:
        """Number of results that the COCO evaluation uses: at most 20 of an image."""
        return sum(len(image.results) for image in self.images)

    @property
    def costs(self) -> dict[str, float]:
        """AP that each of ``CORRECTIONS`` costs, in that order: its gain after those before it. The costs and the AP
        add up to ``corrected["missed"]``, which is 1."""
        stages = [self.ap, *(self.corrected[kind] for kind in CORRECTIONS)]
        return {kind: after - before for kind, before, after in zip(CORRECTIONS, stages, stages[1:])}


@dataclass(frozen=True)
class Change:
    """One number of two results files."""

    group: str
    """What kind of number: ``metric``, ``cost`` (AP that a kind of error costs), ``count`` (of keypoints of each kind,
    of background results and of missed people), ``keypoint`` (share of good ones), or a key of
    ``Diagnosis.sensitivity`` (AP of a slice)."""
    name: str
    """Which number of the group: ``AP50``, ``jitter``, ``nose``, ``medium`` ..."""
    before: float
    after: float
    improved: bool
    """Whether the second file is better. Equal numbers are not listed."""


@dataclass(frozen=True)
class ImageChange:
    """How well the people of an image were found by two results files."""

    id: int
    file_name: str
    """Escape it in HTML."""
    before: float
    """Sum of the OKS of the image's people with their matched results in the first file."""
    after: float
    """The same in the second file."""

    @property
    def change(self) -> float:
        return self.after - self.before


@dataclass(frozen=True)
class Difference:
    """A results file compared with the first one."""

    baseline: str
    """Name of the first results file."""
    name: str
    """Name of the other one."""
    ap_difference: float
    """AP of the other file minus AP of the first."""
    interval: tuple[float, float]
    """95 % confidence interval of the AP difference, from the resampled images."""
    share_better: float
    """Share of the resamples, 0-1, in which the other file has the higher AP; ties count half."""
    resamples: int
    """Number of times that the images were resampled."""
    changes: Sequence[Change]
    """Numbers that differ, the largest change of each group first."""
    images: Sequence[ImageChange]
    """Images in which people were found better or worse, the largest change first."""

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        low, high = self.interval
        return low > 0 or high < 0


@dataclass(frozen=True)
class Comparison:
    """Several results files for the same annotations; the first is the baseline."""

    names: Sequence[str]
    """All results files, the baseline first."""
    differences: Sequence[Difference]
    """Each other file compared with the baseline."""
