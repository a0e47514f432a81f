"""How well tracks follow the truth: IDF1, HOTA and MOTA by TrackEval, and switched identities at crossings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from posenet.benchmark.degraded_people import is_visible
from posenet.inference.person import Person
from posenet.inference.tracking.assignment import assign
from posenet.inference.tracking.motion import person_sizes
from posenet.skeleton import COCO
from posenet.synthetic.video import RATE, FilmedPerson

Film = Sequence[Sequence[FilmedPerson]]
"""The truth of each frame of a video."""
Tracks = Sequence[Sequence[Person]]
"""The tracked people of each frame of a video."""

MATCH = 0.5
"""Smallest OKS of a person and the truth that match."""
CROSSING_OVERLAP = 0.5
"""Two people cross while their boxes overlap by this share of the smaller one."""


def score_tracks(films: Sequence[Film], tracks: Sequence[Tracks]) -> dict[str, float]:
    """IDF1, HOTA (mean over its thresholds) and MOTA over several videos, 0-1, and the number of identity switches."""
    from trackeval.metrics import CLEAR, HOTA, Identity

    sequences = {str(number): _sequence(film, people) for number, (film, people) in enumerate(zip(films, tracks))}
    totals: dict[str, Any] = {}
    for metric in (HOTA(), CLEAR({"PRINT_CONFIG": False}), Identity({"PRINT_CONFIG": False})):
        results = {name: metric.eval_sequence(sequence) for name, sequence in sequences.items()}
        totals |= metric.combine_sequences(results)
    return {
        "idf1": float(totals["IDF1"]),
        "hota": float(np.mean(totals["HOTA"])),
        "mota": float(totals["MOTA"]),
        "switches": int(totals["IDSW"]),
    }


def _sequence(film: Film, tracks: Tracks) -> dict[str, Any]:
    """One video in the form of TrackEval, which numbers the people from 0."""
    truth = [[person for person in people if is_visible(person)] for people in film]
    truth_ids = [[person.id for person in people] for people in truth]
    track_ids = [[person.id for person in people] for people in tracks]
    numbered_truth, num_truth = _number_from_0(truth_ids)
    numbered_tracks, num_tracks = _number_from_0(track_ids)
    return {
        "gt_ids": numbered_truth,
        "tracker_ids": numbered_tracks,
        "similarity_scores": [oks(a, b) for a, b in zip(truth, tracks)],
        "num_gt_dets": sum(map(len, truth_ids)),
        "num_tracker_dets": sum(map(len, track_ids)),
        "num_gt_ids": num_truth,
        "num_tracker_ids": num_tracks,
        "num_timesteps": len(truth),
    }


def _number_from_0(ids: Sequence[Sequence[int | None]]) -> tuple[list[np.ndarray], int]:
    numbers = {id: number for number, id in enumerate(dict.fromkeys(id for frame in ids for id in frame))}
    return [np.array([numbers[id] for id in frame], int) for frame in ids], len(numbers)


def oks(truth: Sequence[FilmedPerson], people: Sequence[Person]) -> np.ndarray:
    """(T, P) OKS over the visible keypoints of the truth; a keypoint that was not found counts 0."""
    true_points = np.array([person.keypoints for person in truth]).reshape(-1, 1, len(COCO.sigmas), 3)
    points = np.array([person.to_coco() for person in people]).reshape(1, -1, len(COCO.sigmas), 3)
    visible = true_points[..., 2] == 2
    sizes = person_sizes(true_points[:, 0, :, :2], visible[:, 0])[:, None, None]
    squares = np.square(true_points[..., :2] - points[..., :2]).sum(-1)
    similarity = np.exp(-squares / (2 * sizes**2 * (2 * np.array(COCO.sigmas)) ** 2)) * (points[..., 2] > 0)
    mean: np.ndarray = (similarity * visible).sum(-1) / np.maximum(visible.sum(-1), 1)
    return mean


def count_crossings(film: Film, tracks: Tracks) -> tuple[int, int]:
    """How many times somebody passed another person, and how many times the id was another one after that.

    The ids are those of the last frame before and of the first frame after the boxes overlap, within a second.
    """
    ids: list[dict[int, int]] = []
    for truth, people in zip(film, tracks):
        similarity = oks(truth, people)
        rows, columns = assign(np.where(similarity >= MATCH, similarity, 0))
        ids.append({truth[row].id: people[column].id or 0 for row, column in zip(rows, columns)})
    passed = 0
    switched = 0
    for first, last, pair in _crossings(film):
        for person in pair:
            second = int(RATE)
            before = [frame[person] for frame in ids[max(0, first - second) : first] if person in frame]
            after = [frame[person] for frame in ids[last + 1 : last + 1 + second] if person in frame]
            if before and after:
                passed += 1
                switched += before[-1] != after[0]
    return passed, switched


def _crossings(film: Film) -> list[tuple[int, int, tuple[int, int]]]:
    """First frame, last frame and people of every crossing. A person who is hidden for a moment is still crossing."""
    crossings: list[tuple[int, int, tuple[int, int]]] = []
    running: dict[tuple[int, int], tuple[int, int]] = {}
    for number, people in enumerate(film):
        for i, a in enumerate(people):
            for b in people[i + 1 :]:
                if _overlap(a.box, b.box) > CROSSING_OVERLAP:
                    pair = a.id, b.id
                    first, last = running.get(pair, (number, number))
                    if number - last > RATE:
                        crossings.append((first, last, pair))
                        first = number
                    running[pair] = first, number
    return crossings + [(first, last, pair) for pair, (first, last) in running.items()]


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    """The common area of two boxes (left, top, width, height) as a share of the smaller one."""
    sides = np.minimum(a[:2] + a[2:], b[:2] + b[2:]) - np.maximum(a[:2], b[:2])
    return float(np.prod(np.maximum(sides, 0)) / max(1, min(np.prod(a[2:]), np.prod(b[2:]))))
