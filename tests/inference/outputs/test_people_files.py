"""Files of people: COCO results, COCO data sets and tables."""

import csv
import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from posenet.annotations.rules import lint_annotations
from posenet.data.build import build_store
from posenet.data.store import Store
from posenet.errors import DataError
from posenet.images import read_image, undo_orientation, write_image
from posenet.inference.media.sources import Frame, Source, find_sources, parse_standard_input
from posenet.inference.outputs.people_files import (
    ImageIds,
    image_folder,
    write_coco,
    write_csv,
    write_json,
    write_json_lines,
)
from posenet.inference.result import Result
from posenet.person import Person
from posenet.skeleton import COCO, Skeleton
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.videos import GREY

PERSON = Person(np.full((18, 3), 0.5, np.float32), 0.75)
CAMERA = Source("camera", 2)


@pytest.mark.parametrize("write_people", [write_json, write_json_lines])
def test_people_are_written_with_image_frame_and_time(tmp_path, write_people):
    path = tmp_path / "people.json"
    image = Source("image", Path("d/000000000139.jpg"))
    video = Source("video", Path("v.mp4"))
    with write_people(path, ImageIds([image, video])) as write:
        write(Result(Frame(image, GREY), [PERSON, PERSON]))
        write(Result(Frame(video, GREY, 3, 0.12, 25.0), [PERSON]))
        write(Result(Frame(video, GREY, 4, 0.16, 25.0), []))
        if write_people is write_json_lines:
            assert path.read_text().count("\n") == 3, "complete at any time"
    text = path.read_text()
    people = json.loads(text) if write_people is write_json else [json.loads(line) for line in text.splitlines()]
    assert [person["image_id"] for person in people] == [139, 139, "v.mp4#3"]
    assert people[0].keys() == {"image_id", "category_id", "keypoints", "score", "file_name"}
    assert people[2]["frame"] == 3 and people[2]["time"] == 0.12 and people[2]["file_name"] == "v.mp4"


def test_the_frames_of_a_video_have_no_exif_orientation(tmp_path):
    """The video is not opened as an image."""
    video = Source("video", tmp_path / "clip.mp4")
    video.path.write_bytes(b"no image")
    with write_coco(tmp_path / "coco.json", [video], COCO, "stored") as write:
        write(Result(Frame(video, GREY, 3, 0.12, 25.0), [PERSON]))
    [image] = json.loads((tmp_path / "coco.json").read_text())["images"]
    assert (image["height"], image["width"]) == GREY.shape[:2]


def test_without_people_the_file_is_an_empty_list_and_an_error_keeps_the_old_file(tmp_path):
    path = tmp_path / "people.json"
    with write_json(path, ImageIds([])):
        pass
    assert json.loads(path.read_text()) == []
    with pytest.raises(OSError), write_json(path, ImageIds([])) as write:
        write(Result(Frame(CAMERA, GREY, 0), [PERSON]))
        raise OSError("disk full")
    assert json.loads(path.read_text()) == []
    assert list(tmp_path.iterdir()) == [path]


def image_frame(path, image=GREY):
    return Frame(Source("image", Path(path)), image)


def test_ids_are_numbers_only_where_no_two_images_have_the_same():
    names = ["camA/000001.png", "camB/000001.png", "42.jpg", "0042.jpg", "000000000139.jpg", "x.png", f"{10**20}.png"]
    sources = parse_standard_input("\n".join([*names, "139.mp4"]).encode())
    ids = ImageIds(sources)
    images = [Frame(source, GREY) for source in sources[:-1]]
    assert [ids.id_of(frame) for frame in images] == [*names[:4], 139, *names[5:]]
    assert ids.id_of(Frame(sources[-1], GREY, 3)) == "139.mp4#3"
    assert ids.id_of(Frame(CAMERA, GREY, 3)) == "camera 2#3"
    assert [ids.next_number(frame) for frame in images] == [1, 2, 3, 4, 139, 5, 6]


def person_at(*points):
    """A person with these (x, y) as nose, right shoulder, left shoulder and so on, and 0.5 as every score."""
    keypoints = np.zeros((18, 3), np.float32)
    rows = [
        COCO.index(name) for name in ("nose", "right_shoulder", "left_shoulder", "right_hip", "left_hip", "right_ankle")
    ]
    for row, point in zip(rows, points):
        keypoints[row] = *point, 0.5
    return Person(keypoints, 0.75)


FIVE = ((20, 10), (10, 30), (30, 32), (12, 60), (28, 64))


@pytest.fixture
def photos(tmp_path):
    """Images in folders, one of them stored on its side, and the frames that a predictor reads from them."""
    folder = tmp_path / "photos"
    noise = np.random.default_rng(0).integers(0, 256, (90, 70, 3)).astype(np.uint8)
    for name in ("a/000001.jpg", "b/000001.jpg", "139.png"):
        write_image(folder / name, noise)
    (folder / "b" / "turned.jpg").write_bytes(with_orientation(encode(np.rot90(noise).copy()), 6))
    sources = find_sources([str(folder)], recursive=True)
    return folder, [Frame(source, read_image(source.path)) for source in sources]


def write_coco_file(path, frames, people_of, skeleton=COCO, exif_frame="displayed"):
    sources = [frame.source for frame in frames]
    with write_coco(path, sources, skeleton, exif_frame) as write:
        for frame, people in zip(frames, people_of, strict=True):
            write(Result(frame, people))
    return json.loads(path.read_text())


def test_a_coco_data_set_is_complete(photos, tmp_path):
    _, frames = photos
    person = person_at(*FIVE)
    content = write_coco_file(tmp_path / "coco.json", frames, [[person], [], [person, person], [person]])
    assert [(image["id"], image["file_name"]) for image in content["images"]] == [
        (139, "139.png"),
        (1, "a/000001.jpg"),
        (2, "b/000001.jpg"),
        (3, "b/turned.jpg"),
    ]
    assert [(image["width"], image["height"]) for image in content["images"]] == [(70, 90)] * 4
    [category] = content["categories"]
    assert category["keypoints"] == list(COCO.file_names) and [16, 14] in category["skeleton"]
    assert [(entry["id"], entry["image_id"]) for entry in content["annotations"]] == [(1, 139), (2, 2), (3, 2), (4, 3)]
    entry = content["annotations"][0]
    assert entry["bbox"] == [10, 10, 20, 54] and entry["area"] == 20 * 54 and entry["num_keypoints"] == 5
    assert entry["category_id"] == category["id"] and entry["iscrowd"] == 0 and entry["score"] == 0.75
    keypoints = np.reshape(entry["keypoints"], (17, 3))
    assert keypoints[0].tolist() == [20, 10, 2] and sorted(keypoints[:, 2]) == [0] * 12 + [2] * 5
    assert not keypoints[keypoints[:, 2] == 0].any()
    [single] = write_coco_file(tmp_path / "coco.json", frames[:1], [[person_at((20, 10))]])["annotations"]
    assert single["bbox"] == [20, 10, 1, 1] and single["area"] == 1
    assert entry["keypoint_scores"][0] == 0.5 and len(entry["keypoint_scores"]) == 17


@pytest.mark.parametrize("exif_frame", ["stored", "displayed"])
def test_a_coco_data_set_is_read_by_the_other_tools(photos, tmp_path, exif_frame):
    """The linter accepts it, and the store builder builds it."""
    folder, frames = photos
    people_of = [[person_at(*FIVE)], [], [person_at(*FIVE), person_at(*np.add(FIVE, 25))], [person_at(*FIVE)]]
    path = tmp_path / "coco.json"
    write_coco_file(path, frames, people_of, exif_frame=exif_frame)
    assert lint_annotations(path, folder) == []
    build_store(folder, path, tmp_path / "a.h5", workers=1)
    with Store(tmp_path / "a.h5") as store:
        assert sorted(store.image_ids.tolist()) == [2, 3, 139]
        assert store.num_people == 4


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_point_of_a_turned_image_is_found_in_the_frame_that_is_written(tmp_path, orientation):
    stored = np.zeros((40, 64, 3), np.uint8)
    stored[4:12, 32:40] = 255
    path = tmp_path / "a.jpg"
    path.write_bytes(with_orientation(encode(stored), orientation))
    image = read_image(path)
    y, x = np.argwhere(image[..., 0] > 200).mean(axis=0)
    for exif_frame, point, shape in (("stored", (35.5, 7.5), (40, 64)), ("displayed", (x, y), image.shape[:2])):
        frames = [image_frame(path, image)]
        content = write_coco_file(tmp_path / "coco.json", frames, [[person_at((x, y))]], exif_frame=exif_frame)
        np.testing.assert_allclose(content["annotations"][0]["keypoints"][:2], point, atol=1)
        assert (content["images"][0]["height"], content["images"][0]["width"]) == shape
    undone = undo_orientation(np.array([[x, y, 0.5]]), image.shape[:2], orientation)
    np.testing.assert_allclose(undone, [[35.5, 7.5, 0.5]], atol=1)


def test_frames_are_listed_as_the_files_that_ffmpeg_writes(tmp_path):
    video = Source("video", tmp_path / "a" / "clip.mp4")
    (tmp_path / "b.png").touch()
    frames = [Frame(video, GREY, 3, 0.12, 25.0), image_frame(tmp_path / "b.png"), Frame(CAMERA, GREY, 7, 0.1, 10.0)]
    images = write_coco_file(tmp_path / "coco.json", frames, [[], [], []])["images"]
    assert [image["file_name"] for image in images] == ["a/clip/000003.jpg", "b.png", "camera-2/000007.jpg"]
    assert (images[0]["frame"], images[0]["time"], images[0]["video"]) == (3, 0.12, video.name)
    assert len({image["id"] for image in images}) == 3


def test_no_two_images_of_a_coco_data_set_have_the_same_file_name(tmp_path):
    paths = [tmp_path / "a.mp4", tmp_path / "a.mkv", tmp_path / "a" / "000000.jpg"]
    (tmp_path / "a").mkdir()
    for path in paths:
        path.touch()
    videos = [Source("video", path) for path in paths[:2]]
    frames = [*(Frame(video, GREY, 0, 0.0, 25.0) for video in videos), image_frame(paths[2])]
    images = write_coco_file(tmp_path / "coco.json", frames, [[], [], []])["images"]
    assert [image["file_name"] for image in images] == ["a-2/000000.jpg", "a-3/000000.jpg", "a/000000.jpg"]


def test_file_names_are_relative_to_the_folder_of_all_inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert image_folder(parse_standard_input("\n".join(["x/a.png", "x/y/b.png"]).encode())) == tmp_path / "x"
    assert image_folder(parse_standard_input(f"x/a.png\n{tmp_path}/z/b.png".encode())) == tmp_path
    assert image_folder([CAMERA]) == tmp_path
    monkeypatch.setattr(os.path, "commonpath", lambda folders: int("two drives"))
    with pytest.raises(DataError, match="on one drive"):
        image_folder([CAMERA])


def test_other_skeletons_have_their_own_keypoints_and_lines(tmp_path):
    skeleton = Skeleton(
        keypoints=("top", "left", "right", "middle"),
        parts=(("top", "left"), ("top", "right"), ("middle", "top")),
        left_right=(("left", "right"),),
        derived={"middle": ("left", "right")},
        file_keypoints=("left", "right", "top"),
        file_names=("l", "r", "t"),
        sigmas=(0.1, 0.1, 0.1),
    )
    person = Person(np.array([[1, 2, 0.5], [3, 4, 0.5], [0, 0, 0], [2, 3, 0.5]], np.float32), 0.5, skeleton)
    content = write_coco_file(tmp_path / "coco.json", [image_frame(__file__)], [[person]], skeleton)
    [category] = content["categories"]
    assert category["keypoints"] == ["l", "r", "t"] and category["skeleton"] == [[3, 1], [3, 2]]
    assert content["annotations"][0]["keypoints"] == [3, 4, 2, 0, 0, 0, 1, 2, 2]
    with write_csv(tmp_path / "people.csv", skeleton) as write:
        write(Result(image_frame(__file__), [person]))
    [row] = csv.DictReader((tmp_path / "people.csv").read_text().splitlines())
    assert (row["left_x"], row["right_x"], row["top_y"]) == ("3.0", "", "2.0"), "only COCO files have other names"


def test_all_files_have_the_id_of_a_tracked_person(tmp_path):
    video = Source("video", tmp_path / "v.mp4")
    frame = Frame(video, GREY, 3, 0.12, 25.0)
    tracked = dataclasses.replace(PERSON, id=7)
    with write_json(tmp_path / "people.json", ImageIds([video])) as write:
        write(Result(frame, [tracked, PERSON]))
    first, second = json.loads((tmp_path / "people.json").read_text())
    assert first["id"] == 7
    assert "id" not in second
    [annotation] = write_coco_file(tmp_path / "coco.json", [frame], [[tracked]])["annotations"]
    assert annotation["track_id"] == 7
    with write_csv(tmp_path / "people.csv", COCO) as write:
        write(Result(frame, [tracked, PERSON]))
    rows = list(csv.DictReader((tmp_path / "people.csv").read_text().splitlines()))
    assert [row["id"] for row in rows] == ["7", ""]
    assert tracked.to_dict() == PERSON.to_dict() | {"id": 7}


def test_a_table_has_one_row_per_person(tmp_path):
    path = tmp_path / "people.csv"
    odd = os.fsdecode(b"odd, \xfc.png")
    with write_csv(path, COCO) as write:
        write(Result(image_frame(odd), [person_at((1.25, 2)), PERSON]))
        write(Result(image_frame("b.png"), []))
        write(Result(Frame(Source("video", Path("v.mp4")), GREY, 3, 0.12), [PERSON]))
    assert b"odd, \xfc.png" in path.read_bytes()
    first, second, third = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8", errors="surrogateescape")))
    assert first["file_name"] == odd and first["frame"] == first["time"] == ""
    numbers = [first[name] for name in ("score", "left", "top", "right", "bottom")]
    assert numbers == "0.75 1.25 2.0 1.25 2.0".split()
    assert (first["nose_x"], first["nose_y"], first["nose_score"]) == ("1.25", "2.0", "0.5")
    assert first["left_ankle_x"] == first["left_ankle_score"] == "" and len(first) == 9 + 3 * 17
    assert second["right_ankle_score"] == "0.5" and (third["frame"], third["time"]) == ("3", "0.12")
