"""Measure the tracker: identities on perfect and on degraded people, smoothing, and speed."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from posenet.benchmark.degraded_people import Degradation, degrade, disturb, to_network_order
from posenet.benchmark.report import Cell, Report
from posenet.benchmark.rival_trackers import Frames, track_nearest_centre, track_with_norfair
from posenet.benchmark.timing import median_seconds
from posenet.benchmark.track_metrics import Film, count_crossings, score_tracks
from posenet.errors import ConfigError
from posenet.inference.person import Person
from posenet.inference.tracking.smoothing import Smoother
from posenet.inference.tracking.tracker import Tracker
from posenet.settings import TrackingConfig
from posenet.synthetic.video import RATE, film

TrackFrames = Callable[[Frames], list[list[Person]]]

WIDTH = 320
HEIGHT = 180
LEVELS = {
    "perfect": Degradation(),
    "light": Degradation(missed=0.05, hidden=0.05, jitter=0.02, false=0.1),
    "moderate": Degradation(missed=0.15, hidden=0.10, jitter=0.04, false=0.3),
    "heavy": Degradation(missed=0.30, hidden=0.20, jitter=0.06, false=0.6),
}
NUM_TIMED_PEOPLE = 10
_TIMED_KEYPOINTS = 14
"""Fewest keypoints of these people."""
_MAX_LAG = 3
"""Longest delay to try, in frames."""
_LAG_STEPS = 20
"""Delays to try in each frame."""


def measure_track(settings: TrackingConfig, num_videos: int, num_frames: int, seed: int, repeats: int) -> Report:
    """Compare the tracker with norfair and with the nearest centre on synthetic videos.

    All of them get the same people and only give them ids. All confirm a person in the third frame, and keep the ids of
    people who are not seen for the same time.

    Args:
        num_frames: length of each video.

    Raises:
        ConfigError: norfair or TrackEval is not installed.
    """
    for package in ("norfair", "trackeval"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"{package} is not installed; pip install 'posenet[track]'")
    keep_frames = round(settings.keep_seconds * RATE)
    trackers: dict[str, TrackFrames] = {
        "posenet": partial(_track, dataclasses.replace(settings, smooth=False)),
        "norfair": partial(track_with_norfair, keep_frames=keep_frames, height=HEIGHT),
        "nearest centre": partial(
            track_nearest_centre, keep_frames=keep_frames, confirm_frames=settings.confirm_frames
        ),
    }
    films = [
        [frame.people for frame in film(np.random.default_rng((seed, 2, index)), WIDTH, HEIGHT, num_frames)]
        for index in range(num_videos)
    ]
    rows: list[list[Cell]] = []
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for number, (level, degradation) in enumerate(LEVELS.items()):
        scores[level] = {}
        found = [
            degrade(truth, degradation, np.random.default_rng((seed, index, number)), WIDTH, HEIGHT)
            for index, truth in enumerate(films)
        ]
        for name, track in trackers.items():
            tracks = [track(frames) for frames in found]
            score = score_tracks(films, tracks)
            crossings = [count_crossings(truth, people) for truth, people in zip(films, tracks)]
            passed, switched = np.sum(crossings, axis=0).tolist()
            scores[level][name] = {**score, "passed": passed, "switched_at_crossings": switched}
            percentages = [f"{100 * score[metric]:.1f}" for metric in ("idf1", "hota", "mota")]
            rows.append([level, name, *percentages, score["switches"], f"{switched} of {passed}"])
    smoothing = {
        level: measure_smoothing(settings, films, degradation.jitter, np.random.default_rng(seed))
        for level, degradation in LEVELS.items()
        if degradation.jitter
    }
    frames = _crowd(films, np.random.default_rng(seed))
    timed: dict[str, TrackFrames] = {
        **trackers,
        "posenet, smoothed": partial(_track, dataclasses.replace(settings, smooth=True)),
    }
    tasks = {name: partial(track, frames) for name, track in timed.items()}
    seconds = median_seconds(tasks, repeats, clock=time.process_time)  # all of them run in one thread
    ms_per_frame = {name: 1000 * value / len(frames) for name, value in seconds.items()}
    speeds = ", ".join(f"{name} {value:.2f}" for name, value in ms_per_frame.items())
    return Report(
        title=f"identities in {num_videos} synthetic videos of {num_frames} frames, seed {seed}",
        header=["people", "tracker", "IDF1", "HOTA", "MOTA", "switches", "at crossings"],
        rows=rows,
        numbers={
            "videos": num_videos,
            "frames": num_frames,
            "scores": scores,
            "smoothing": smoothing,
            "ms_per_frame": ms_per_frame,
        },
        notes=[
            *(_smoothing_note(level, numbers) for level, numbers in smoothing.items()),
            f"Milliseconds of one core per frame with {NUM_TIMED_PEOPLE} people: {speeds}.",
        ],
    )


def _smoothing_note(level: str, numbers: dict[str, float]) -> str:
    return (
        f"Smoothing leaves {numbers['jitter_left']:.0%} of the {level} jitter in still keypoints; "
        f"those of people who walk lag {numbers['lag_frames']:.2f} frames behind."
    )


def _track(settings: TrackingConfig, frames: Frames) -> list[list[Person]]:
    tracker = Tracker(settings)
    return [tracker.update(people, number / RATE) for number, people in enumerate(frames)]


def measure_smoothing(
    settings: TrackingConfig, films: Sequence[Film], jitter: float, rng: np.random.Generator
) -> dict[str, float]:
    """Measure what smoothing does to the jitter of people who stand still, and how far it lags behind those who walk.

    Args:
        jitter: standard deviation, in sizes of the person.

    Returns:
        ``jitter_left``: the standard deviation of still keypoints after smoothing, relative to before; ``error_left``:
        the same for the distance from the truth of people who walk; ``lag_frames``: the delay of the truth at which the
        smoothed keypoints are nearest to it.
    """
    pose = to_network_order(films[0][0][0])[None]
    still = np.repeat(pose, round(20 * RATE), axis=0)
    noisy, smooth = _smooth(settings, still, jitter, rng)
    settled = (slice(round(RATE), None), pose[0, :, 2] > 0)
    jitter_left = smooth[settled].std(0).mean() / noisy[settled].std(0).mean()
    squares = np.zeros((2, _MAX_LAG * _LAG_STEPS + 1))  # of noisy and smoothed keypoints, for each delay of the truth
    for truth in films:
        for id in {person.id for people in truth for person in people}:
            poses = np.zeros((len(truth), *pose.shape[1:]))
            for row, people in zip(poses, truth):
                for person in people:
                    if person.id == id:
                        row[:] = to_network_order(person)
            noisy, smooth = _smooth(settings, poses, jitter, rng)
            is_visible = np.lib.stride_tricks.sliding_window_view(poses[..., 2] > 0, _MAX_LAG + 2, axis=0).all(-1)
            for step in range(squares.shape[1]):
                whole, part = divmod(step, _LAG_STEPS)
                newer = poses[_MAX_LAG + 1 - whole : len(poses) - whole, :, :2]
                older = poses[_MAX_LAG - whole : len(poses) - whole - 1, :, :2]
                delayed = newer + (older - newer) * part / _LAG_STEPS
                for row, points in zip(squares, (noisy, smooth)):
                    row[step] += np.square(points[_MAX_LAG + 1 :] - delayed)[is_visible].sum()
    return {
        "jitter_left": float(jitter_left),
        "error_left": float(np.sqrt(squares[1, 0] / squares[0, 0])),
        "lag_frames": float(squares[1].argmin() - squares[0].argmin()) / _LAG_STEPS,
    }


def _smooth(
    settings: TrackingConfig, poses: np.ndarray, jitter: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Add jitter to the (F, K, 3) poses of a person in F frames; return x and y (F, K, 2) of it, and smoothed."""
    smoother = Smoother(settings)
    noisy = np.zeros((*poses.shape[:2], 2))
    smooth = np.zeros_like(noisy)
    for number, pose in enumerate(poses):
        if pose[:, 2].any():
            person = dataclasses.replace(disturb(pose, Degradation(jitter=jitter), rng), id=1)
            noisy[number] = person.keypoints[:, :2]
            smooth[number] = smoother.update([person], number / RATE)[0].keypoints[:, :2]
    return noisy, smooth


def _crowd(films: Sequence[Film], rng: np.random.Generator) -> Frames:
    """``NUM_TIMED_PEOPLE`` people who walk in parallel for ten seconds, with jitter."""
    examples = [to_network_order(person) for truth in films for people in truth for person in people]
    complete = [pose for pose in examples if np.count_nonzero(pose[:, 2]) >= _TIMED_KEYPOINTS]
    poses = np.array([complete[index] for index in rng.integers(len(complete), size=NUM_TIMED_PEOPLE)])
    poses[..., 1] += HEIGHT * np.arange(NUM_TIMED_PEOPLE)[:, None]
    frames = []
    for _ in range(round(10 * RATE)):
        poses[..., 0] += 1
        frames.append([disturb(pose, LEVELS["light"], rng) for pose in poses])
    return frames
