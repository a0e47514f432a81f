"""Comparison of decoded people with annotated ones: the errors of the decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from posenet.annotations.people import People
from posenet.inference.perfect_grouping import match_to_truth
from posenet.inference.person import Person
from posenet.skeleton import Skeleton


def count_errors(truth: People, found: Sequence[Person], skeleton: Skeleton) -> tuple[Counter[str], np.ndarray]:
    """Compare the people found in one image with the annotated ones.

    Returns:
        Counts and distances. The counts of keypoints are ``labelled``; ``missed``; ``spurious``; and ``misgiven``:
        found with another person than most keypoints of their person. The counts of people are ``people``: labelled;
        ``whole``: found as one person without keypoints of others; ``split``: found as several; and ``merged``: people
        found that consist of several. The distances are those of the keypoints found, in pixels.
    """
    truth = truth.select(truth.is_labelled)
    is_found = np.array([person.found for person in found]).reshape(-1, skeleton.num_keypoints)
    positions = np.array([person.keypoints[:, :2] for person in found]).reshape(-1, skeleton.num_keypoints, 2)
    found_row, keypoint = np.nonzero(is_found)
    owner, distance = match_to_truth(truth, keypoint, positions[found_row, keypoint], skeleton)
    is_matched = owner >= 0
    shared = np.zeros((len(truth), len(found) + 1), int)  # keypoints of each true person in each found one
    np.add.at(shared, (owner[is_matched], found_row[is_matched]), 1)
    main = shared.argmax(axis=1)  # the found person with most keypoints of each true one
    in_main = shared.max(axis=1)
    is_whole = (in_main > 0) & (in_main == shared.sum(axis=1)) & (in_main == shared.sum(axis=0)[main])
    labelled = int((truth.keypoints[..., 2] > 0).sum())
    counts = Counter(
        labelled=labelled,
        missed=labelled - int(shared.sum()),
        spurious=int((~is_matched).sum()),
        misgiven=int(shared.sum() - in_main.sum()),
        people=len(truth),
        whole=int(is_whole.sum()),
        split=int(((shared > 0).sum(axis=1) > 1).sum()),
        merged=int(((shared > 0).sum(axis=0) > 1).sum()),
    )
    return counts, distance[is_matched]
