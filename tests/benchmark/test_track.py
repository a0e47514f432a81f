"""The benchmark of the tracker."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence

import numpy as np
import pytest

from posenet.benchmark.degraded_people import MIN_KEYPOINTS, Degradation, degrade, is_visible
from posenet.benchmark.rival_trackers import track_nearest_centre
from posenet.benchmark.track import measure_track
from posenet.benchmark.track_metrics import count_crossings, oks, score_tracks
from posenet.errors import ConfigError
from posenet.inference.person import Person
from posenet.settings import TrackingConfig
from posenet.skeleton import COCO
from posenet.synthetic.video import FilmedPerson
from tests.helpers.moving_people import person_at

HAS_PACKAGES = all(importlib.util.find_spec(name) for name in ("norfair", "trackeval"))
needs_packages = pytest.mark.skipif(not HAS_PACKAGES, reason="norfair and trackeval (extra track) are not installed")


def filmed(id: int, x: float) -> FilmedPerson:
    """A person of whom all keypoints are visible."""
    keypoints = COCO.to_file_order(person_at(x).keypoints).astype(float)
    keypoints[:, 2] = 2
    low = keypoints[:, :2].min(0)
    return FilmedPerson(id, np.concatenate([low, keypoints[:, :2].max(0) - low]), keypoints, 1.0)


def two_people_who_cross() -> list[list[FilmedPerson]]:
    return [[filmed(1, 100 + 4 * number), filmed(2, 400 - 4 * number)] for number in range(75)]


def with_ids(film: Sequence[Sequence[FilmedPerson]], swap_from: int = 10**9) -> list[list[Person]]:
    """The people of a film; from frame ``swap_from`` on their ids are swapped."""
    return [
        [
            dataclasses.replace(
                person_at(100 + 4 * number if person.id == 1 else 400 - 4 * number),
                id=person.id if number < swap_from else 3 - person.id,
            )
            for person in people
        ]
        for number, people in enumerate(film)
    ]


def test_perfect_people_are_those_with_visible_keypoints() -> None:
    film = [[filmed(1, 100), filmed(2, 300)]]
    film[0][1].keypoints[MIN_KEYPOINTS - 1 :, 2] = 1
    assert [is_visible(person) for person in film[0]] == [True, False]
    ((person,),) = degrade(film, Degradation(), np.random.default_rng(0), 500, 400)
    np.testing.assert_allclose(person.keypoints, person_at(100).keypoints, rtol=1e-5)


def test_degradation_depends_on_the_seed_alone_and_has_the_given_shares() -> None:
    film = [[filmed(id, 100 * id) for id in range(1, 6)] for _ in range(200)]
    degradation = Degradation(missed=0.2, hidden=0.25, jitter=0.03, false=1.5)
    found = degrade(film, degradation, np.random.default_rng(1), 600, 400)
    assert found == degrade(film, degradation, np.random.default_rng(1), 600, 400)
    assert np.mean([len(people) for people in found]) == pytest.approx(5 * 0.8 + 1.5, abs=0.3)
    assert np.mean([person.found.mean() for people in found for person in people]) == pytest.approx(0.79, abs=0.03)


def test_oks_counts_missing_keypoints_as_wrong() -> None:
    person = person_at(100)
    half = Person(person.keypoints * (np.arange(18) % 2)[:, None], 1.0)
    similarity = oks([filmed(1, 100)], [person, half, person_at(300)])
    assert similarity[0, 0] == pytest.approx(1)
    assert similarity[0, 1] == pytest.approx(np.count_nonzero(half.to_coco()[:, 2]) / 17)
    assert similarity[0, 2] == pytest.approx(0, abs=1e-6)


def test_switches_at_crossings_are_counted() -> None:
    film = two_people_who_cross()
    assert count_crossings(film, with_ids(film)) == (2, 0)
    assert count_crossings(film, with_ids(film, swap_from=38)) == (2, 2)
    assert count_crossings(film, with_ids(film, swap_from=5)) == (2, 0)


@needs_packages
def test_scores_of_perfect_and_of_swapped_ids() -> None:
    film = two_people_who_cross()
    perfect = score_tracks([film], [with_ids(film)])
    assert perfect == pytest.approx({"idf1": 1, "hota": 1, "mota": 1, "switches": 0})
    swapped = score_tracks([film], [with_ids(film, swap_from=38)])
    assert swapped["switches"] == 2
    assert swapped["idf1"] == pytest.approx(0.51, abs=0.02)
    assert swapped["mota"] == pytest.approx(1 - 2 / 150)


def test_the_nearest_centre_switches_ids_of_people_who_cross() -> None:
    film = two_people_who_cross()
    found = degrade(film, Degradation(), np.random.default_rng(0), 500, 400)
    tracks = track_nearest_centre(found, keep_frames=10, confirm_frames=1)
    assert {person.id for people in tracks for person in people} == {1, 2}


@needs_packages
def test_missing_packages_are_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"norfair is not installed; pip install 'posenet\[track\]'"):
        measure_track(TrackingConfig(), 1, 10, 0, 1)
