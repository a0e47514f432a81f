"""Compare several results files for the same annotations: what improved, what got worse, and whether it is noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from posenet.diagnosis.average_precision import PrecisionCurves, average_precision
from posenet.diagnosis.outcome import Outcome
from posenet.diagnosis.result import Change, Comparison, Diagnosis, Difference, ImageChange
from posenet.progress import progress_bar

RESAMPLES = 1000
"""Number of times that the images are resampled."""
_INTERVAL = (2.5, 97.5)
"""Percentiles of the AP difference in the resamples: the ends of the 95 % interval."""


def compare(
    diagnoses: Sequence[Diagnosis], *, resamples: int = RESAMPLES, seed: int = 0, progress: bool = True
) -> Comparison:
    """Compare results files with the first of them, the baseline.

    The interval of the AP difference is a paired bootstrap over images: each resample draws as many images as there
    are, with replacement, and computes the AP of all files on them. An interval that contains 0 means that other images
    of the same kind could reverse the difference.

    Args:
        diagnoses: of the same annotations, as ``diagnose`` returns them.
        seed: of the random numbers. The same seed gives the same interval.

    Raises:
        ValueError: fewer than two diagnoses, or diagnoses of different annotations or made by hand.
    """
    if len(diagnoses) < 2:
        raise ValueError("a comparison needs two diagnoses or more")
    baseline, *others = diagnoses
    if any(_people(other) != _people(baseline) for other in others):
        raise ValueError("the diagnoses are of different annotations; diagnose all results with the same ones")
    aps = _resample([_outcome(diagnosis) for diagnosis in diagnoses], resamples, seed, progress)  # (files, resamples)
    differences = []
    for other, gain in zip(others, aps[1:] - aps[0]):
        low, high = np.percentile(gain, _INTERVAL).tolist()
        differences.append(
            Difference(
                baseline=baseline.name,
                name=other.name,
                ap_difference=other.ap - baseline.ap,
                interval=(low, high),
                share_better=float((gain > 0).mean() + (gain == 0).mean() / 2),
                resamples=resamples,
                changes=_changes(baseline, other),
                images=_image_changes(baseline, other),
            )
        )
    return Comparison([diagnosis.name for diagnosis in diagnoses], differences)


def _resample(outcomes: Sequence[Outcome], resamples: int, seed: int, progress: bool) -> np.ndarray:
    """(files, resamples) AP of every file on the same resampled images."""
    rng = np.random.default_rng(seed)
    curves = [PrecisionCurves(outcome.scores, outcome.correct, outcome.counted) for outcome in outcomes]
    people_per_image = outcomes[0].people_per_image
    num_images = len(people_per_image)
    aps = np.empty((len(outcomes), resamples))
    for column in progress_bar(range(resamples), "resample images", unit="resample", leave=False, disable=not progress):
        # How often each image is drawn.
        weights = np.bincount(rng.integers(num_images, size=num_images), minlength=num_images).astype(float)
        for row, (outcome, curve) in enumerate(zip(outcomes, curves)):
            num_people = np.full(len(outcome.correct), weights @ people_per_image)
            aps[row, column] = average_precision(curve.compute(num_people, weights[outcome.image]))
    return aps


def _changes(before: Diagnosis, after: Diagnosis) -> list[Change]:
    changes = []
    numbers_after = {(group, name): number for group, name, number in _numbers(after)}
    for group, name, number in _numbers(before):
        other = numbers_after.get((group, name), number)
        if other != number:
            lower_is_better = group == "cost" or (group == "count" and name != "good")
            changes.append(Change(group, name, number, other, improved=(other < number) == lower_is_better))
    groups = list(dict.fromkeys(change.group for change in changes))
    return sorted(changes, key=lambda change: (groups.index(change.group), -abs(change.after - change.before)))


def _numbers(diagnosis: Diagnosis) -> Iterator[tuple[str, str, float]]:
    """Group, name and value of every number that is compared, without those that there are no people for."""
    for name, value in diagnosis.metrics.items():
        if value >= 0:
            yield "metric", name, value
    for name, value in diagnosis.costs.items():
        yield "cost", name, value
    for name, count in diagnosis.counts.items():
        yield "count", name, count
    yield "count", "background", diagnosis.background
    yield "count", "missed", diagnosis.missed
    for name, counts in diagnosis.keypoints.items():
        if total := sum(counts.values()):
            yield "keypoint", name, counts["good"] / total
    for dimension, slices in diagnosis.sensitivity.items():
        for part in slices:
            if part.ap >= 0:
                yield dimension, part.name, part.ap


def _image_changes(before: Diagnosis, after: Diagnosis) -> list[ImageChange]:
    changes = []
    for old, new in zip(before.images, after.images, strict=True):
        change = ImageChange(
            id=old.id,
            file_name=old.file_name,
            before=sum(person.oks for person in old.people),
            after=sum(person.oks for person in new.people),
        )
        if change.change:
            changes.append(change)
    return sorted(changes, key=lambda change: -abs(change.change))


def _people(diagnosis: Diagnosis) -> list[tuple[int, int]]:
    """The id of every image, and the number of people in it."""
    return [(image.id, len(image.people)) for image in diagnosis.images]


def _outcome(diagnosis: Diagnosis) -> Outcome:
    if diagnosis.outcome is None:
        raise ValueError("the diagnosis was made by hand and cannot be compared; use posenet.diagnose")
    return diagnosis.outcome
