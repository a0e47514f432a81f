"""Keypoint candidates and limbs, and the rules by which the decoder selects them from the maps.

Two modules make this selection with the constants below:

- ``host_candidates`` uses NumPy and OpenCV on the maps of one image. On a CPU it is two to three times as fast.
- ``device_candidates`` uses PyTorch on whole batches, with outputs of fixed size. On a GPU, only its outputs and not
  the maps are copied to the CPU. It can be exported to ONNX.

Rules
-----
A candidate is a peak of a keypoint map: a cell that is at least as high as the keypoint threshold and as each of its
eight neighbours. On each axis, its position is refined to the top of the parabola through the logarithms of three
adjacent cells; this is exact for a Gaussian. The ``MAX_PEAKS`` strongest candidates of each keypoint are kept.

A limb is a pair of candidates for the two ends of a body part. Let a and b be the scores of the candidates, m the map
of the body part and t the part threshold. The pair has

    confidence       c = (a b)^CONFIDENCE_POWER
    prefilter score  (mean of m at PREFILTER_POSITIONS - t) c               m in the nearest cell
    limb score       ((mean of m + second lowest m) / 2 - t) c              m at SAMPLE_POSITIONS, interpolated

The limb score is computed for the ``MAX_LIMBS`` pairs with the best prefilter scores above 0. It contains the second
lowest sample because a wrong limb crosses the responses of other limbs near its ends, but rarely over its whole length.
It contains the confidence because a network has weak responses at many wrong positions.

In all maps NaN counts as 0, and values are clipped to the range from 0 to ``MAX_VALUE``.

Differences
-----------
Both modules lead to the same people, except for rounding, the order of equal scores and plateaus:

- A plateau is a peak of several adjacent equal cells. ``host_candidates`` returns one candidate in its middle.
  ``device_candidates`` returns its first cell in reading order, refined as any other peak. For two cells this is the
  middle as well.
- ``host_candidates`` gets the cells that show the image. ``device_candidates`` gets the padded maps of a batch and the
  number of cells that show each image; it ignores peaks in the padding.
- ``host_candidates`` also returns negative limb scores. ``device_candidates`` sets them to 0. Neither is a limb.

This module and ``people`` need only NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_PEAKS = 40
"""Candidates kept of each keypoint, the strongest first."""
MAX_LIMBS = 1500
"""Pairs for which a limb score is computed, those with the best prefilter scores first."""
MAX_VALUE = 2.0
"""Map values should be between 0 and 1. Larger ones are clipped to this, so that an infinity is harmless."""
CONFIDENCE_POWER = 1.5
"""Exponent of the product of two candidates' scores in the confidence of their pair."""
PREFILTER_POSITIONS = np.array([0.25, 0.5, 0.75], np.float32)
"""Where the prefilter samples a pair: 0 is its first candidate, 1 its second."""
SAMPLE_POSITIONS = np.linspace(0, 1, 10, dtype=np.float32)
"""Where the limb score samples a pair."""


@dataclass(frozen=True)
class KeypointCandidates:
    """N keypoint candidates of one image, sorted by keypoint, then highest score first."""

    keypoint: np.ndarray
    """(N,) int, index of the keypoint."""
    xy: np.ndarray
    """(N, 2) float32, position in map cells."""
    score: np.ndarray
    """(N,) float32, height of the peak."""


@dataclass(frozen=True)
class Limbs:
    """M pairs of candidates that may be the two ends of a body part."""

    part: np.ndarray
    """(M,) int, index of the body part."""
    ends: np.ndarray
    """(M, 2) int, rows of the two candidates."""
    score: np.ndarray
    """(M,) float32, limb score."""
