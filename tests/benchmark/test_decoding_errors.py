from posenet.benchmark.decoding_errors import count_errors
from posenet.inference.person import Person
from posenet.skeleton import COCO
from tests.helpers.annotated_people import annotations, two_people


def found_person(joints):
    keypoints = joints.copy()
    keypoints[:, 2] = joints[:, 2] > 0
    return Person(keypoints, 1.0)


def test_people_found_exactly_have_no_errors():
    one, two = two_people()
    counts, distances = count_errors(annotations(one, two), [found_person(two), found_person(one)], COCO)
    assert counts == {
        "labelled": 36,
        "missed": 0,
        "spurious": 0,
        "misgiven": 0,
        "people": 2,
        "whole": 2,
        "split": 0,
        "merged": 0,
    }
    assert len(distances) == 36 and not distances.any()


def test_each_kind_of_error_is_counted():
    one, two = two_people()
    two[:, 0] += 400
    mixed = one.copy()
    mixed[:3] = two[:3]  # three keypoints of the second person
    rest = one.copy()
    rest[3:] = 0  # the first person's own three, as another person
    incomplete = two.copy()
    incomplete[:5] = 0  # two keypoints that nobody else has are missing
    incomplete[17, :2] = 2000  # one is far away
    found = [found_person(mixed), found_person(rest), found_person(incomplete)]
    counts, distances = count_errors(annotations(one, two), found, COCO)
    assert counts == {
        "labelled": 36,
        "missed": 3,
        "spurious": 1,
        "misgiven": 6,
        "people": 2,
        "whole": 0,
        "split": 2,
        "merged": 1,
    }
    assert len(distances) == 33


def test_nobody_found_and_nobody_annotated():
    counts, distances = count_errors(annotations(), [], COCO)
    assert not any(counts.values()) and not len(distances)
    assert count_errors(annotations(*two_people()), [], COCO)[0]["missed"] == 36
