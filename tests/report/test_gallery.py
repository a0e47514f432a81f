"""Which images the gallery holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from posenet.diagnosis.result import ImageDiagnosis
from posenet.report import gallery
from posenet.report.gallery import ResultRanks, choose_images, crowding_of, loss_of
from tests.helpers.diagnoses import diagnosis_of, image_of, small_diagnosis, true_person, two_runs


def image_with_misses(number: int, misses: int) -> ImageDiagnosis:
    return image_of(number, [true_person(300)], [dict.fromkeys(range(misses), "miss")])


def test_a_small_set_of_images_is_complete_and_in_order() -> None:
    assert choose_images([small_diagnosis()], None) == [0, 1, 2, 3, 4]


def test_the_worst_images_and_the_worst_of_each_kind_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "MAX_IMAGES", 4)
    monkeypatch.setattr(gallery, "RANKED_IMAGES", 4)
    perfect = [image_with_misses(number, 0) for number in range(20)]
    bad = image_with_misses(20, 6)
    swapped = image_of(21, [true_person(300)], [{9: "swap"}])
    empty = image_of(22, [true_person(300, missed=True)], [{}])
    spurious = image_of(23, [true_person(300)], [{}], background=1)
    assert choose_images([diagnosis_of([*perfect, bad, swapped, empty, spurious])], None) == [20, 21, 22, 23]


def test_rare_keypoints_are_in_the_gallery_though_others_are_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "MAX_IMAGES", 60)
    monkeypatch.setattr(gallery, "RANKED_IMAGES", 20)
    bad = [image_with_misses(number, 8) for number in range(100)]
    rare = image_of(100, [true_person(300)], [{16: "miss"}])
    chosen = choose_images([diagnosis_of([*bad, rare])], None)
    assert len(chosen) == 60
    assert 100 in chosen


def test_images_that_changed_are_in_the_gallery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "MAX_IMAGES", 1)
    monkeypatch.setattr(gallery, "RANKED_IMAGES", 1)
    diagnoses, comparison = two_runs()
    unchanged = [diagnosis_of([image_with_misses(image.id, 0) for image in one.images]) for one in diagnoses]
    assert choose_images(unchanged, comparison) == [2]


def test_the_loss_of_an_image_is_the_missing_similarity_of_its_people() -> None:
    image = image_of(1, [true_person(100), true_person(300, missed=True)], [{0: "miss", 1: "miss"}, {}])
    assert loss_of(image) == pytest.approx(2 / 17 + 1)


def test_a_result_that_scores_above_better_ones_is_misranked() -> None:
    good = [image_with_misses(number, 0) for number in range(8)]
    bad = image_with_misses(8, 8)
    [result] = bad.results
    bad = replace(bad, results=[replace(result, score=0.99)])
    ranks = ResultRanks.of(diagnosis_of([*good, bad]))
    assert ranks.misrankings(8, 1) == [pytest.approx(1.0)]
    assert ranks.misrankings(0, 1) == [0.0]
    assert ranks.misranked == 1


def test_results_of_equal_oks_may_have_any_order() -> None:
    images = [image_with_misses(number, 0) for number in range(8)]
    images = [
        replace(image, results=[replace(image.results[0], score=0.1 * number)]) for number, image in enumerate(images)
    ]
    assert ResultRanks.of(diagnosis_of(images)).misranked == 0


def test_many_background_results_with_low_scores_hide_no_misranked_one() -> None:
    images = [image_with_misses(number, 0) for number in range(8)]
    crowded = image_of(8, [true_person(300)], [dict.fromkeys(range(8), "miss")], background=60)
    person, *background = crowded.results
    crowded = replace(crowded, results=[replace(person, score=0.99), *background])
    assert ResultRanks.of(diagnosis_of([*images, crowded])).misranked == 1


def test_results_that_do_not_count_are_not_misranked() -> None:
    good = [image_with_misses(number, 0) for number in range(8)]
    crowd = image_with_misses(8, 8)
    crowd = replace(crowd, results=[replace(crowd.results[0], score=0.99, true_oks=0.0, ignored=True)])
    assert ResultRanks.of(diagnosis_of([*good, crowd])).misranked == 0


def test_no_results_at_all_have_no_ranks() -> None:
    nobody = image_of(1, [true_person(100, missed=True)], [{}])
    assert ResultRanks.of(diagnosis_of([nobody])).misranked == 0
    assert choose_images([diagnosis_of([nobody])], None) == [0]


def test_crowding_has_the_groups_of_the_sensitivity() -> None:
    assert [crowding_of(number) for number in (0, 1, 2, 3, 9)] == ["0", "1-2", "1-2", "3 or more", "3 or more"]


def test_images_of_many_results_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [image_with_misses(number, 1 + number % 8) for number in range(20)]
    monkeypatch.setattr(gallery, "MAX_POINTS", 17 * 2 * 5)  # one person and one result in each image
    assert len(choose_images([diagnosis_of(images)], None)) == 5
    assert len(choose_images([diagnosis_of(images)] * 4, None)) == 2
