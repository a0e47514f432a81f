"""COCO annotations: strict reading, main persons, masks."""

from __future__ import annotations

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from posenet.annotations import run_lengths as rle
from posenet.annotations.coco_file import main_persons, read_annotations
from posenet.annotations.masks import masks
from posenet.errors import DataError
from posenet.skeleton import COCO
from tests.helpers.drawn_data import HEIGHT, WIDTH, crowd, document, person, write_annotations


def read(tmp_path, annotations, image_ids=(1,)):
    content = document(image_ids, annotations)
    return read_annotations(write_annotations(tmp_path / "tiny.json", content))


def people_of(tmp_path, *annotations):
    return read(tmp_path, list(annotations)).people[1]


def box_mask(x, y, w, h):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[y : y + h, x : x + w] = 1
    return mask


class TestReading:
    def test_people_stand_with_their_image_in_file_order(self, tmp_path):
        dataset = read(tmp_path, [person(5, 2), person(4, 1), person(3, 2)], image_ids=(2, 1, 7))
        assert [image.id for image in dataset.images] == [2, 1, 7]
        assert {key: [p.id for p in people] for key, people in dataset.people.items()} == {2: [5, 3], 1: [4], 7: []}

    def test_keypoints_are_in_the_order_of_the_skeleton(self, tmp_path):
        entry = person(1, 1, labelled=0)
        entry["keypoints"] = [value for k in range(17) for value in (k, 100 + k, 1 + k % 2)]
        (one,) = people_of(tmp_path, entry)
        assert one.keypoints.dtype == np.float32 and one.keypoints.shape == (18, 3)
        file_order = "nose Leye Reye Lear Rear Lsho Rsho Lelb Relb Lwri Rwri Lhip Rhip Lkne Rkne Lank Rank".split()
        for k, name in enumerate(file_order):
            assert one.keypoints[COCO.index(name)].tolist() == [k, 100 + k, 1 + k % 2]
        assert one.keypoints[COCO.index("neck")].tolist() == [5.5, 105.5, 1]

    def test_the_derived_neck_is_not_counted(self, tmp_path):
        assert people_of(tmp_path, person(1, 1, labelled=7))[0].num_labelled == 7

    def test_what_is_odd_but_true_is_kept(self, tmp_path):
        outside = person(1, 1, (-30, -20, 50, 60))
        empty = person(2, 1, (10, 10, 0, 0))
        bare = person(3, 1)
        del bare["keypoints"], bare["segmentation"], bare["iscrowd"]
        first, second, third = people_of(tmp_path, outside, empty, bare)
        assert first.keypoints[0].tolist() == [-30, -20, 2]
        assert second.box.tolist() == [10, 10, 0, 0]
        assert third.num_labelled == 0 and third.segmentation is None and not third.crowd and not third.labelled

    def test_other_categories_are_left_out(self, tmp_path):
        content = document([1], [person(1, 1), person(2, 1, category_id=2, keypoints=[])])
        content["categories"].append({"id": 2, "name": "kite"})
        dataset = read_annotations(write_annotations(tmp_path / "tiny.json", content))
        assert [p.id for p in dataset.people[1]] == [1]

    def test_real_annotations(self, coco_sample):
        dataset = read_annotations(coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json")
        people = [p for image in dataset.images for p in dataset.people[image.id]]
        assert len(dataset.images) == 150 and len(people) == 577
        assert sum(p.crowd for p in people) == 14 and sum(p.labelled for p in people) == 390
        assert all(p.segmentation is not None for p in people)


def image(**changes):
    return lambda content: content["images"][0].update(changes)


def annotation(**changes):
    return lambda content: content["annotations"][0].update(changes)


def again(key):
    return lambda content: content[key].append(dict(content[key][0]))


def without(key, entry=None):
    return lambda content: (content if entry is None else content[entry][0]).pop(key)


FAULTS = {
    "no images": (without("images"), "'images'"),
    "no annotations": (without("annotations"), "'annotations'"),
    "no categories": (without("categories"), "'categories'"),
    "images are numbers": (lambda content: content.update(images=[1]), "'images'"),
    "other keypoints": (lambda content: content["categories"][0].update(keypoints=["nose", "tail"]), "tail"),
    "no keypoint names": (without("keypoints", "categories"), "no category"),
    "image id twice": (again("images"), "image id 1 appears twice"),
    "annotation id twice": (again("annotations"), "annotation id 8 appears twice"),
    "unknown image": (annotation(image_id=99), "names image 99"),
    "unknown category": (annotation(category_id=99), "names category 99"),
    "annotation without id": (without("id", "annotations"), "an annotation has no whole number as id"),
    "image id is text": (image(id="1"), "an image has no whole number as id"),
    "no file name": (without("file_name", "images"), "no file_name"),
    "no height": (without("height", "images"), "height"),
    "no width": (without("width", "images"), "width"),
    "zero height": (image(height=0), "impossible size"),
    "gigantic width": (image(width=10**9), "impossible size"),
    "path upwards": (image(file_name="../1.jpg"), "'../1.jpg'"),
    "path upwards inside": (image(file_name="a/../../1.jpg"), "inside the image folder"),
    "path upwards, Windows": (image(file_name="a\\..\\..\\1.jpg"), "inside the image folder"),
    "absolute path": (image(file_name="/etc/passwd"), "inside the image folder"),
    "absolute path, Windows": (image(file_name="C:\\1.jpg"), "inside the image folder"),
    "zero byte in path": (image(file_name="1\0.jpg"), "inside the image folder"),
    "half a character in path": (image(file_name="\ud800.jpg"), "inside the image folder"),
    "too few keypoints": (annotation(keypoints=[0] * 50), "keypoints must hold 51 numbers"),
    "no keypoint at all": (annotation(keypoints=[]), "keypoints must hold 51 numbers"),
    "keypoints are text": (annotation(keypoints=["1"] * 51), "keypoints must hold 51 numbers"),
    "keypoint NaN": (annotation(keypoints=[float("nan")] * 51), "annotation 8: keypoints holds a number that is not"),
    "absurd keypoint": (annotation(keypoints=[1e300] * 51), "absurdly large"),
    "endless integer": (annotation(area=10**400), "absurdly large"),
    "visibility 7": (annotation(keypoints=[1, 1, 7] * 17), "annotation 8 has a visibility"),
    "no box": (without("bbox", "annotations"), "bbox must hold 4 numbers"),
    "short box": (annotation(bbox=[1, 2, 3]), "bbox must hold 4 numbers"),
    "infinite box": (annotation(bbox=[0, 0, float("inf"), 1]), "not finite"),
    "negative box": (annotation(bbox=[0, 0, -1, 1]), "negative size"),
    "no area": (without("area", "annotations"), "area must hold 1 number"),
    "area NaN": (annotation(area=float("nan")), "not finite"),
    "polygon NaN": (annotation(segmentation=[[0, 0, 5, float("nan"), 5, 5]]), "segmentation"),
    "crowd 2": (annotation(iscrowd=2), "iscrowd 2"),
}


class TestFaults:
    @pytest.mark.parametrize("name", FAULTS)
    def test_contradictions_are_named(self, tmp_path, name):
        spoil, expected = FAULTS[name]
        content = document([1], [person(8, 1)])
        spoil(content)
        path = write_annotations(tmp_path / "spoiled.json", content)
        with pytest.raises(DataError) as caught:
            read_annotations(path)
        message = str(caught.value)
        assert message.startswith(str(path)) and expected in message
        assert "\n" not in message and "re-export" in message

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"\xff\xd8\xff\xe0", b"[" * 100_000], ids=["empty", "cut off", "a JPEG", "deep"]
    )
    def test_not_json(self, tmp_path, content):
        path = tmp_path / "not.json"
        path.write_bytes(content)
        with pytest.raises(DataError, match="not.json is not valid JSON"):
            read_annotations(path)

    @pytest.mark.parametrize("content", [[], 3, "COCO", None, [{"image_id": 1, "score": 0.5}]])
    def test_json_but_not_coco(self, tmp_path, content):
        with pytest.raises(DataError, match="tiny.json.*not a COCO data set"):
            read_annotations(write_annotations(tmp_path / "tiny.json", content))

    def test_missing_file_and_folder(self, tmp_path):
        for path in (tmp_path / "none.json", tmp_path):
            with pytest.raises(DataError, match=f"cannot read annotations {path}: "):
                read_annotations(path)


class TestMainPersons:
    def test_five_keypoints_32_pixels_squared_and_no_crowd(self, tmp_path):
        boxes = [(0, 0, 32, 32), (50, 0, 32, 32), (100, 0, 32, 31), (0, 80, 32, 32), (100, 80, 0, 32)]
        people = people_of(
            tmp_path,
            person(1, 1, boxes[0], 5),
            person(2, 1, boxes[1], 4),
            person(3, 1, boxes[2], 5),
            person(4, 1, boxes[3], 17, iscrowd=1),
            person(5, 1, boxes[4], 17, area=2000),
        )
        assert main_persons(people) == [0]

    def test_farther_than_three_tenths_of_the_longer_side(self, tmp_path):
        first = person(1, 1, (0, 0, 40, 100))
        at, beyond = person(2, 1, (30, 0, 40, 100)), person(3, 1, (31, 0, 40, 100))
        assert main_persons(people_of(tmp_path, first, at)) == [0]
        assert main_persons(people_of(tmp_path, first, beyond)) == [0, 1]

    def test_the_earlier_persons_own_box_sets_the_distance(self, tmp_path):
        large, small = person(1, 1, (0, 0, 100, 100)), person(2, 1, (55, 30, 40, 40))
        assert main_persons(people_of(tmp_path, large, small)) == [0]
        assert main_persons(people_of(tmp_path, small, large)) == [0, 1]

    def test_every_earlier_main_person_counts_not_only_the_last(self, tmp_path):
        near_the_first = person(3, 1, (5, 5, 40, 40))
        people = people_of(tmp_path, person(1, 1, (0, 0, 40, 40)), person(2, 1, (100, 60, 40, 40)), near_the_first)
        assert main_persons(people) == [0, 1]

    def test_one_who_is_not_a_main_person_keeps_nobody_away(self, tmp_path):
        people = people_of(tmp_path, person(1, 1, (0, 0, 40, 40), 3), person(2, 1, (2, 2, 40, 40)))
        assert main_persons(people) == [1]


class TestMasks:
    def test_labelled_unlabelled_and_several_crowds(self, tmp_path):
        people = people_of(
            tmp_path,
            person(1, 1, (0, 0, 20, 30)),
            person(2, 1, (40, 0, 20, 30), 0),
            crowd(3, 1, (0, 60, 30, 20)),
            crowd(4, 1, (80, 60, 30, 20)),
            crowd(5, 1, (150, 0, 10, 120)),
        )
        mask_all, mask_miss = masks(people, HEIGHT, WIDTH)
        ignored = box_mask(40, 0, 20, 30) + box_mask(0, 60, 30, 20) + box_mask(80, 60, 30, 20)
        ignored += box_mask(150, 0, 10, 120)
        for mask in (mask_all, mask_miss):
            assert mask.dtype == np.uint8 and mask.shape == (HEIGHT, WIDTH) and mask.flags.f_contiguous
        np.testing.assert_array_equal(mask_miss, 1 - ignored)
        np.testing.assert_array_equal(mask_all, ignored + box_mask(0, 0, 20, 30))

    def test_a_labelled_person_in_a_crowd_stays_supervised(self, tmp_path):
        others = [crowd(2, 1, (0, 0, 100, 100)), person(3, 1, (90, 90, 30, 30), 0)]
        people = people_of(tmp_path, person(1, 1, (60, 60, 40, 40)), *others)
        mask_all, mask_miss = masks(people, HEIGHT, WIDTH)
        crowded = box_mask(0, 0, 100, 100) | box_mask(90, 90, 30, 30)
        np.testing.assert_array_equal(mask_miss, 1 - (crowded & ~box_mask(60, 60, 40, 40)))
        np.testing.assert_array_equal(mask_all, crowded)

    def test_a_crowd_is_ignored_even_with_keypoints(self, tmp_path):
        people = people_of(tmp_path, person(1, 1, (10, 10, 20, 20), 17, iscrowd=1))
        np.testing.assert_array_equal(masks(people, HEIGHT, WIDTH)[1], 1 - box_mask(10, 10, 20, 20))

    def test_no_people(self):
        mask_all, mask_miss = masks([], 3, 5)
        assert not mask_all.any() and mask_miss.all() and mask_all.shape == mask_miss.shape == (3, 5)

    def test_all_three_kinds_of_outline_agree(self, tmp_path):
        polygon, runs = person(1, 1, (30, 10, 40, 50)), crowd(2, 1, (30, 10, 40, 50))
        counts = coco_mask.encode(np.asfortranarray(box_mask(30, 10, 40, 50)))["counts"].decode()
        text = person(3, 1, (30, 10, 40, 50), segmentation={"size": [HEIGHT, WIDTH], "counts": counts})
        for one in people_of(tmp_path, polygon, runs, text):
            np.testing.assert_array_equal(masks([one], HEIGHT, WIDTH)[0], box_mask(30, 10, 40, 50))

    def test_several_polygons_are_one_person(self, tmp_path):
        legs = [[10, 10, 20, 10, 20, 50, 10, 50], [30, 10, 40, 10, 40, 50, 30, 50], [1, 1, 2, 2]]
        (one,) = people_of(tmp_path, person(1, 1, segmentation=legs))
        np.testing.assert_array_equal(
            masks([one], HEIGHT, WIDTH)[0], box_mask(10, 10, 10, 40) + box_mask(30, 10, 10, 40)
        )

    @pytest.mark.parametrize(
        "outline",
        [
            None,
            [],
            [[]],
            [[1, 2, 3, 4]],
            [[1, 2, 3, 4, 5, 6, 7]],
            [["a"] * 6],
            [[1e9, 0, 1e9, 9, 0, 9]],
            "polygon",
            7,
            {},
            {"size": [WIDTH, HEIGHT], "counts": [HEIGHT * WIDTH]},
            {"size": [HEIGHT, WIDTH]},
            {"size": [HEIGHT, WIDTH], "counts": [1, 2]},
            {"size": [HEIGHT, WIDTH], "counts": [-1, HEIGHT * WIDTH + 1]},
            {"size": [HEIGHT, WIDTH], "counts": [10**400]},
            {"size": [HEIGHT, WIDTH], "counts": "oooooooo"},
            {"size": [HEIGHT, WIDTH], "counts": ""},
            {"size": [HEIGHT, WIDTH], "counts": "é"},
        ],
        ids=str,
    )
    def test_without_a_usable_outline_the_box_counts(self, tmp_path, outline):
        people = people_of(
            tmp_path,
            person(1, 1, (10.4, 20.6, 30, 40), 0, segmentation=outline),
            person(2, 1, (150, 100, 50, 50), 0, segmentation=outline),
        )
        assert all(one.segmentation is None for one in people)
        mask_all, mask_miss = masks(people, HEIGHT, WIDTH)
        expected = box_mask(10, 20, 31, 41) + box_mask(150, 100, 10, 20)
        np.testing.assert_array_equal(mask_all, expected)
        np.testing.assert_array_equal(mask_miss, 1 - expected)

    def test_a_box_far_larger_than_the_image(self, tmp_path):
        people = people_of(tmp_path, person(1, 1, (-1e9, -1e9, 1e10, 1e10), 0, area=1.0, segmentation=None))
        assert masks(people, HEIGHT, WIDTH)[0].all()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools")
    def test_real_outlines_agree_with_pycocotools(self, coco_sample):
        dataset = read_annotations(coco_sample / "annotations" / "person_keypoints_train2017.json")
        for image in dataset.images:
            size = image.height, image.width
            for one in dataset.people[image.id]:
                runs = one.segmentation
                given = {"size": list(size), "counts": runs.tolist()} if isinstance(runs, np.ndarray) else runs
                encoded = coco_mask.frPyObjects(given, *size)
                whole = coco_mask.merge(encoded) if isinstance(encoded, list) else encoded
                np.testing.assert_array_equal(masks([one], *size)[0], coco_mask.decode(whole))


class TestRunLengths:
    @pytest.mark.filterwarnings("ignore::DeprecationWarning:pycocotools")
    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (37, 53), (300, 200), (500, 600)])
    @pytest.mark.parametrize("share", [0.0, 1e-5, 0.02, 0.5, 1.0])
    def test_round_trips_and_pycocotools(self, shape, share):
        mask = (np.random.default_rng(5).random(shape) < share).astype(np.uint8)
        decoded = rle.decode(rle.encode(mask), *shape)
        np.testing.assert_array_equal(decoded, mask)
        assert decoded.flags.c_contiguous and decoded.dtype == np.uint8
        theirs = coco_mask.encode(np.asfortranarray(mask))["counts"]
        np.testing.assert_array_equal(rle.fill(rle.check(rle.parse(theirs), mask.size), *shape), mask)

    @pytest.mark.parametrize("longest", [rle.LONGEST - 1, rle.LONGEST, rle.LONGEST + 1, 2 * rle.LONGEST, 200_000])
    def test_runs_of_any_length(self, longest):
        mask = np.repeat(np.uint8([0, 1, 0, 1]), [longest, longest, 3, longest]).reshape(1, -1)
        np.testing.assert_array_equal(rle.decode(rle.encode(mask), *mask.shape), mask)
        np.testing.assert_array_equal(rle.decode(rle.encode(1 - mask), *mask.shape), 1 - mask)

    def test_damaged_text_is_an_error_never_a_wrong_mask(self):
        counts = coco_mask.encode(np.asfortranarray(box_mask(30, 10, 40, 50)))["counts"]
        for damaged in (b"", counts[:-1], counts + b"1", counts + b"o", b"\x00" + counts, b"z" * 30, counts + b"\xff"):
            with pytest.raises(ValueError, match="run lengths"):
                rle.check(rle.parse(damaged), HEIGHT * WIDTH)

    def test_damaged_runs_are_an_error_never_a_wrong_mask(self):
        counts = rle.encode(box_mask(30, 10, 40, 50))
        for damaged in (b"", counts[:-1], counts[:-2], counts[2:], counts + b"\1", counts + b"\1\0"):
            with pytest.raises(ValueError, match="run lengths"):
                rle.decode(damaged, HEIGHT, WIDTH)
        with pytest.raises(ValueError, match="run lengths"):
            rle.decode(counts, HEIGHT, WIDTH - 1)
