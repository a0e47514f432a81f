"""The kinds of errors, in the order in which they are corrected, and the sizes of people: their definitions and names.

The kinds are those of Ronchi and Perona, "Benchmarking and Error Diagnosis in Multi-Instance Pose Estimation" (ICCV
2017). ``diagnose`` documents how they are decided and corrected.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MATCH_OKS = 0.1
"""A result with at least this OKS has a person with whose keypoints its own are compared."""
GOOD_SIMILARITY = 0.85
"""A keypoint at least as similar to the right one is good: people who annotate differ as much."""
MIN_SIMILARITY = 0.5
"""A keypoint less similar to every true one is a miss."""

KEYPOINT_KINDS = ("good", "miss", "swap", "inversion", "jitter")
"""What a labelled keypoint of a matched result can be. All but the first are localisation errors."""
LOCALISATION = KEYPOINT_KINDS[1:]
CORRECTIONS = (*LOCALISATION, "score", "background", "missed")
"""The kinds of errors in the order in which they are corrected one after the other."""
MISSED_AT_50 = "missed_at_50"
"""The part of ``missed`` that is left where a result at OKS 0.50 counts as found at every threshold."""
UNCORRECTED = "uncorrected"
"""The results as they are, where they stand beside the corrected ones."""

OKS_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
"""COCO's OKS thresholds, 0.50, 0.55 ... 0.95, the order of every array of ten numbers. They are those of pycocotools to
the last bit: its 0.9 is a little less than the number of that name."""

SIZES = {"small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
"""Smallest and largest area of the people of a size, in square pixels, as in the COCO evaluation, where both belong to
the size. Where a person has one size, 32^2 and 96^2 are medium."""


def size_numbers(areas: np.ndarray) -> np.ndarray:
    """The index into ``SIZES`` of each area."""
    low, high = SIZES["medium"]
    return np.asarray((areas >= low).astype(int) + (areas > high))


class Kind(NamedTuple):
    """How the page names a kind and explains it."""

    label: str
    meaning: str
    verdict: str = ""
    """The headline if this kind costs most."""
    remedy: str = ""
    """What to try."""


TEXTS = {
    "ap": Kind("AP", "The average precision of the results as they are."),
    "good": Kind("Good", "The keypoint is where it should be: its similarity is at least 0.85."),
    "miss": Kind(
        "Misplaced",
        "A keypoint is far from where it should be, and on that of no other person either.",
        "Misplaced keypoints cost most",
        "Train longer, or on more images like those below; see which keypoints and groups of people have most of them.",
    ),
    "swap": Kind(
        "Swap",
        "A keypoint lies on the same or the mirrored keypoint of another person.",
        "Keypoints on other people cost most",
        "Train on more images of people that overlap, or predict at a larger input size.",
    ),
    "inversion": Kind(
        "Inversion",
        "Left and right of the same person are exchanged.",
        "Left and right exchanged cost most",
        "Check left and right in the training labels (posenet annotations lint), then train longer.",
    ),
    "jitter": Kind(
        "Jitter",
        "A keypoint is near the right place but not exact: its similarity is 0.5 to 0.85.",
        "Keypoints that are a little off cost most",
        "Predict at a larger input size; then train longer or with more stacks.",
    ),
    "score": Kind(
        "Score",
        "The scores rank the results in another order than their true OKS.",
        "Badly ranked results cost most",
        "Look at results with high scores where no person is, and at good ones with low scores.",
    ),
    "background": Kind(
        "Background",
        "A result matches no person. It costs nothing in turn, because corrected scores rank it last.",
        "Results that match no person cost most",
        "Look whether they are people that are not annotated; else train on images with such backgrounds.",
    ),
    "missed": Kind(
        "Missed person",
        "No result matches the person even at OKS 0.50.",
        "Missed people cost most",
        "See which sizes and groups are missed; small people need a larger input size.",
    ),
    "inexact": Kind(
        "Inexact",
        "A result matches the person at OKS 0.50, but not at stricter thresholds, even after the corrections: good "
        "keypoints are not exact either.",
        "Inexact keypoints cost most",
        "Predict at a larger input size; then train longer or with more stacks.",
    ),
}
"""Texts of the kinds on the page, where ``missed`` are the people missed at OKS 0.50, and the rest is ``inexact``."""
