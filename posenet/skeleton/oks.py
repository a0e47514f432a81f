"""Object keypoint similarity (OKS), COCO's measure of how near the keypoints of a result are to those of a person.

The similarity of one keypoint at the distance d from the true one is exp(-d^2 / (2 area (2 sigma)^2)), where the area
is that of the person and sigma the OKS constant of the keypoint (``Skeleton.sigmas``). The OKS is the mean over the
labelled keypoints. See https://cocodataset.org/#keypoints-eval.
"""

import numpy as np


def keypoint_similarity(squares: np.ndarray, areas: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Similarity, 0-1, of keypoints at (..., F) squared distances from the true ones.

    The (..., 1) or (...) areas of the people are in square pixels, too; all arguments are broadcast.
    """
    # In the order of pycocotools, so that the last bit is the same; the tiny addition is for areas of 0.
    return np.asarray(np.exp(-(squares / (2 * sigmas) ** 2 / (areas + np.spacing(1)) / 2)))


def similar_distance(similarity: np.ndarray, areas: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """The distance in pixels at which a keypoint has this similarity, the inverse of ``keypoint_similarity``."""
    return np.asarray(np.sqrt(-2 * np.log(similarity) * (areas + np.spacing(1))) * 2 * sigmas)


def mean_over_labelled(similarity: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """The OKS: (N,) mean of the similarities (N, F) over the labelled keypoints (N, F); 0 without any.

    It is that of pycocotools to the last bit, because an OKS may be exactly at a threshold. So people with equally many
    labelled keypoints are summed together: rounding depends on the number of terms.
    """
    counts = labelled.sum(axis=1)
    labelled_first = np.take_along_axis(similarity, np.argsort(~labelled, axis=1, kind="stable"), axis=1)
    means = np.zeros(len(counts))
    for count in np.unique(counts[counts > 0]).tolist():
        rows = np.flatnonzero(counts == count)
        means[rows] = labelled_first[rows, :count].sum(axis=1) / count
    return means
