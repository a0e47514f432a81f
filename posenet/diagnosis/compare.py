"""Compare several results files for the same annotations: by how much the AP differs, and whether it is noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posenet.diagnosis.average_precision import average_precision
from posenet.diagnosis.diagnose import Diagnosis
from posenet.errors import DataError
from posenet.progress_bar import progress_bar

RESAMPLES = 1000
"""Number of times that the images are resampled."""
_INTERVAL = (2.5, 97.5)
"""Percentiles of the AP difference in the resamples: the ends of the 95 % interval."""


@dataclass(frozen=True)
class Difference:
    """A results file compared with the first one."""

    baseline: str  # name of the first results file
    name: str  # name of the other one
    ap_difference: float  # AP of the other file minus AP of the first
    interval: tuple[float, float]  # 95 % confidence interval of the AP difference, from the resampled images

    @property
    def significant(self) -> bool:
        """Whether the interval excludes 0."""
        low, high = self.interval
        return low > 0 or high < 0


def compare(
    diagnoses: Sequence[Diagnosis], *, resamples: int = RESAMPLES, seed: int = 0, progress: bool = True
) -> list[Difference]:
    """Compare each diagnosis with the first of them, the baseline; all are of the same annotations.

    The interval of the AP difference is a paired bootstrap over images: each resample draws as many images as there
    are, with replacement, and computes the AP of all files on them. An interval that contains 0 means that other images
    of the same kind could reverse the difference.

    Raises:
        ValueError: fewer than two diagnoses.
        DataError: diagnoses of different annotations, images or skeletons.
    """
    if len(diagnoses) < 2:
        raise ValueError("a comparison needs two diagnoses or more")
    baseline, *others = diagnoses
    for other in others:
        same_images = [image.id for image in baseline.images] == [image.id for image in other.images]
        same_skeleton = baseline.matched.skeleton == other.matched.skeleton
        if not (same_images and same_skeleton and baseline.matched.truth.equals(other.matched.truth)):
            raise DataError(
                f"{baseline.name} and {other.name} were diagnosed with different annotations; "
                "diagnose all results with the same annotation file, images and skeleton"
            )
    aps = _resample(diagnoses, resamples, seed, progress)
    differences = []
    for other, gains in zip(others, aps[1:] - aps[0]):
        low, high = np.percentile(gains, _INTERVAL).tolist()
        differences.append(Difference(baseline.name, other.name, other.ap - baseline.ap, (low, high)))
    return differences


def _resample(diagnoses: Sequence[Diagnosis], resamples: int, seed: int, progress: bool) -> np.ndarray:
    """(files, resamples) AP of every file on the same resampled images."""
    rng = np.random.default_rng(seed)
    truth = diagnoses[0].matched.truth
    num_images = len(diagnoses[0].images)
    people_per_image = np.bincount(truth.image[truth.people], minlength=num_images)
    aps = np.empty((len(diagnoses), resamples))
    for column in progress_bar(range(resamples), "resample images", unit="resample", leave=False, disable=not progress):
        # How often each image is drawn.
        weights = np.bincount(rng.integers(num_images, size=num_images), minlength=num_images).astype(float)
        for row, diagnosis in enumerate(diagnoses):
            curves = diagnosis.outcome.precision(weights @ people_per_image, weights[diagnosis.matched.results.image])
            aps[row, column] = average_precision(curves)
    return aps
