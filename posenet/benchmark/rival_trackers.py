"""Trackers to compare with: norfair, and the nearest centre."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from posenet.inference.person import Person
from posenet.inference.tracking.motion import person_sizes

NORFAIR_REACH = 0.1
"""Keypoints nearer than this share of the frame's height agree. Norfair's example for poses has 1/40, which is worse
here."""
NORFAIR_DELAY = 2
"""People are confirmed in the third frame, as by our tracker. The example has 4, which loses more frames."""

Frames = Sequence[Sequence[Person]]
"""The people of each frame."""


def track_nearest_centre(frames: Frames, keep_frames: int, confirm_frames: int) -> list[list[Person]]:
    """Give every person the id of the nearest earlier centre, within a person's size; the nearest pair first."""
    centres: dict[int, np.ndarray] = {}
    last_seen: dict[int, int] = {}
    sightings: dict[int, int] = {}
    next_id = 1
    tracked = []
    for number, people in enumerate(frames):
        observed = [person.keypoints[person.found, :2].mean(0) for person in people]
        sizes = [person_sizes(person.keypoints[None, :, :2], person.found[None])[0] for person in people]
        pairs = [
            (np.hypot(*(centre - observed[index])), id, index)
            for id, centre in centres.items()
            for index in range(len(people))
        ]
        id_of: dict[int, int] = {}
        for distance, id, index in sorted(pairs):
            if distance < sizes[index] and index not in id_of and id not in id_of.values():
                id_of[index] = id
        for index in range(len(people)):
            if index not in id_of:
                id_of[index] = next_id
                next_id += 1
            centres[id_of[index]] = observed[index]
            last_seen[id_of[index]] = number
            sightings[id_of[index]] = sightings.get(id_of[index], 0) + 1
        for id in [id for id in centres if number - last_seen[id] > keep_frames]:
            del centres[id]
        tracked.append(
            [
                dataclasses.replace(person, id=id_of[index])
                for index, person in enumerate(people)
                if sightings[id_of[index]] >= confirm_frames
            ]
        )
    return tracked


def track_with_norfair(frames: Frames, keep_frames: int, height: int) -> list[list[Person]]:
    """Track with norfair, which gives ids to the people of the frame; their keypoints stay."""
    import norfair
    from norfair.distances import create_keypoints_voting_distance

    tracker = norfair.Tracker(
        distance_function=create_keypoints_voting_distance(height * NORFAIR_REACH, 0.1),
        distance_threshold=0.4,
        detection_threshold=0.1,
        initialization_delay=NORFAIR_DELAY,
        hit_counter_max=keep_frames,
        pointwise_hit_counter_max=10,
    )
    tracked = []
    for people in frames:
        detections = [
            norfair.Detection(person.to_coco()[:, :2].astype(float), person.to_coco()[:, 2].astype(float), data=person)
            for person in people
        ]
        objects = tracker.update(detections)
        tracked.append(
            [
                dataclasses.replace(item.last_detection.data, id=item.id)
                for item in objects
                if item.last_detection in detections
            ]
        )
    return tracked
