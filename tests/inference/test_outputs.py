"""Outputs of predictions: names, drawn videos, the window; COCO results, COCO data sets and tables."""

import contextlib
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from posenet.annotations.reader import read_annotation_file
from posenet.data.build import build_store
from posenet.data.store import Store
from posenet.errors import ConfigError
from posenet.images import read_image, write_image
from posenet.inference.media.frames import Frame, Source, find_sources, parse_standard_input
from posenet.inference.outputs import (
    drawing_suffix,
    image_numbers,
    output_paths,
    record_of,
    require_display,
    show_in_window,
    write_coco,
    write_csv,
    write_drawing,
    write_json,
)
from posenet.inference.result import Result
from posenet.person import Person
from posenet.skeleton import COCO, Skeleton
from posenet.skeleton.skeleton_file import skeleton_from_table, skeleton_to_table
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.videos import GREY, install_window, read_video

PERSON = Person(np.full((18, 3), 0.5, np.float32), 0.75)
CAMERA = Source("camera", 2)
SKELETON = Skeleton(
    keypoints=("top", "left", "right", "middle"),
    parts=(("top", "left"), ("top", "right"), ("middle", "top")),
    left_right=(("left", "right"),),
    derived={"middle": ("left", "right")},
    file_keypoints=("left", "right", "top"),
    file_names=("l", "r", "t"),
    sigmas=(0.1, 0.1, 0.1),
    drawn=(("top", "left"), ("left", "right"), ("middle", "top")),
)


def test_output_names_are_unique_and_have_writable_formats(tmp_path: Path) -> None:
    listed = parse_standard_input(b"a.jpg\nx/A.JPG\na.mp4\nb.webm\nc.raw\nd.pgm\ne.gif\ne.mp4\n")
    sources = [*listed, CAMERA]
    sources += find_sources(["/dev/video0", "http://host/clip.mp4?a=b", "rtsp://me:secret@host:554/"])
    paths = output_paths(sources, tmp_path, drawing_suffix)
    assert [str(path.relative_to(tmp_path)) for path in paths.values()] == [
        *("a.jpg", "A-2.JPG", "a.mp4", "b.mp4", "c.png", "d.png"),
        *("e.png", "e.mp4", "camera-2.mp4", "camera-video0.mp4", "clip.mp4", "host.mp4"),
    ]


def test_a_drawn_video_is_there_when_it_is_complete(tmp_path: Path) -> None:
    pytest.importorskip("posenet.inference.media.video")
    video = Source("video", tmp_path / "in" / "clip.mp4")
    path = output_paths([video], tmp_path, drawing_suffix)[video]
    with write_drawing(path) as write:
        for number in range(3):
            write(Frame(video, GREY, number, number / 10, 10.0, aspect=1.5), GREY)
        assert not path.exists()
    assert [(frame.rate, frame.aspect) for frame in read_video(tmp_path / "clip.mp4")] == [(10, 1.5)] * 3
    path = output_paths([CAMERA], tmp_path, drawing_suffix)[CAMERA]
    with write_drawing(path) as write:
        for seconds in (0.0, 0.8):
            write(Frame(CAMERA, GREY, round(seconds), seconds, 10.0), GREY)
    pace = read_video(tmp_path / "camera-2.mp4")[-1].seconds
    assert pace == pytest.approx(0.8, abs=1e-3), "the pace is that of the camera"


def test_a_missing_display_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(ConfigError, match=r"needs a display, and OpenCV cannot open a window here \(DISPLAY=:77;"):
        require_display()


@pytest.mark.parametrize(
    "number, keys, is_visible, closed",
    [
        (0, [ord("q")], True, True),
        (0, [27], True, True),
        (0, [ord("n")], True, False),
        (0, [-1], False, True),
        (None, [-1, -1, -1, ord("n")], True, False),
        (None, [-1], False, True),
        (None, [-1, -1, -1], True, False),
    ],
    ids=["q", "escape", "other key", "closed by hand", "an image until a key", "until it is closed", "until a request"],
)
def test_when_a_window_is_closed(
    monkeypatch: pytest.MonkeyPatch, number: int | None, keys: list[int], is_visible: bool, closed: bool
) -> None:
    pressed = list(keys)
    shown = install_window(monkeypatch, lambda: pressed.pop(0), is_visible)
    closings: list[bool] = []
    with show_in_window(lambda: keys == [-1] * 3 and not pressed, lambda: closings.append(True)) as show:
        show(Frame(CAMERA, GREY, number), GREY)
        assert bool(closings) == closed and len(shown) == 1 and not pressed


@pytest.fixture
def written(tmp_path, monkeypatch):
    """The files of people: of an image, and of two frames of a video in which one of two people is tracked."""
    monkeypatch.chdir(tmp_path)
    one = Person(np.float32([[1.25, 2, 0.5], [3.0004, 4, 0.75], [0, 0, 0], [2, 3, 0.5]]), 0.12346, SKELETON)
    only_derived = Person(np.float32([[0, 0, 0]] * 3 + [[8, 9, 0.5]]), 0.5, SKELETON)
    image, video = Source("image", Path("d/000000000139.jpg")), Source("video", Path("v.mp4"))
    ids = image_numbers([image, video])
    files = {
        "p.json": write_json(Path("p.json")),
        "c.json": write_coco(Path("c.json"), [image, video], SKELETON),
        "p.csv": write_csv(Path("p.csv"), SKELETON),
    }
    results = [
        Result(Frame(image, GREY), [one]),
        Result(Frame(video, GREY, 3, 0.12346, 25.0), [dataclasses.replace(one, id=7), only_derived]),
        Result(Frame(video, GREY, 4, 0.16, 25.0)),
    ]
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(file) for file in files.values()]
        for result in results:
            for write in writers:
                write(json.loads(json.dumps(record_of(result, ids))))
    return {name: Path(name).read_text() for name in files}


def test_results_have_one_line_for_each_person(written):
    found = {"category_id": 1, "keypoints": [3.0, 4.0, 0.75, 0.0, 0.0, 0.0, 1.25, 2.0, 0.5], "score": 0.12346}
    moment = {"file_name": "v.mp4", "frame": 3, "time": 0.1235}
    people = [
        {"image_id": 139} | found | {"file_name": "d/000000000139.jpg"},
        {"image_id": "v.mp4#3"} | found | moment | {"id": 7},
        {"image_id": "v.mp4#3", "category_id": 1, "keypoints": [0.0] * 9, "score": 0.5} | moment,
    ]
    assert written["p.json"] == "[\n" + ",\n".join(map(json.dumps, people)) + "\n]\n"


def test_a_coco_data_set_has_all_images_and_the_people_with_keypoints_that_coco_knows(written):
    """COCO's file has other names of the keypoints, and frames are listed as the files that FFmpeg writes."""
    size = {"height": 48, "width": 64}
    person = {
        "category_id": 1,
        "iscrowd": 0,
        "bbox": [1.25, 2, 1.75, 2],
        "area": 3.5,
        "segmentation": [],
        "num_keypoints": 2,
        "keypoints": [3, 4, 2, 0, 0, 0, 1.25, 2, 2],
        "keypoint_scores": [0.75, 0, 0.5],
        "score": 0.12346,
    }
    category = {"supercategory": "person", "id": 1, "name": "person", "keypoints": ["l", "r", "t"]}
    assert json.loads(written["c.json"]) == {
        "info": {"description": "People found by posenet"},
        "licenses": [],
        "categories": [category | {"skeleton": [[3, 1], [1, 2]], "flip_idx": [1, 0, 2]}],
        "annotations": [
            {"id": 1, "image_id": 139} | person,
            {"id": 2, "image_id": 1, "track_id": 7} | person,
        ],
        "images": [
            {"id": 139, "file_name": "d/000000000139.jpg"} | size,
            {"id": 1, "file_name": "v/000003.jpg", "video": "v.mp4", "frame": 3, "time": 0.1235} | size,
            {"id": 2, "file_name": "v/000004.jpg", "video": "v.mp4", "frame": 4, "time": 0.16} | size,
        ],
    }


def test_a_table_has_one_row_for_each_person(written):
    names = [f"{name}_{column}" for name in ("left", "right", "top") for column in ("x", "y", "score")]
    assert written["p.csv"].splitlines() == [
        ",".join(["file_name,frame,time,id,score,left,top,right,bottom", *names]),
        "d/000000000139.jpg,,,,0.1235,1.25,2.0,3.0,4.0,3.0,4.0,0.75,,,,1.25,2.0,0.5",
        "v.mp4,3,0.1235,7,0.1235,1.25,2.0,3.0,4.0,3.0,4.0,0.75,,,,1.25,2.0,0.5",
        "v.mp4,3,0.1235,,0.5,8.0,9.0,8.0,9.0,,,,,,,,,",
    ]


def test_results_name_the_category_of_their_skeleton(tmp_path):
    """Its number is that of the annotations with which the skeleton was drafted, so that these tools compare them."""
    cat = dataclasses.replace(SKELETON, category="cat", category_id=17)
    cat = skeleton_from_table(skeleton_to_table(cat))
    result = Result(image_frame("1.png"), [Person(np.full((4, 3), 0.5, np.float32), 0.5, cat)], cat)
    with write_json(tmp_path / "p.json") as write, write_coco(tmp_path / "c.json", [result.frame.source], cat) as add:
        write_result(write, result)
        write_result(add, result)
    [person] = json.loads((tmp_path / "p.json").read_text())
    content = json.loads((tmp_path / "c.json").read_text())
    assert (person["category_id"], person["category"]) == (17, "cat")
    assert [(category["id"], category["name"]) for category in content["categories"]] == [(17, "cat")]
    assert [entry["category_id"] for entry in content["annotations"]] == [17]


def test_a_program_that_reads_standard_output_gets_every_person_at_once(capsys):
    for file in (write_json(Path("-")), write_csv(Path("-"), COCO)):
        with file as write:
            write_result(write, Result(image_frame("a.png"), [PERSON]))
            assert "a.png" in capsys.readouterr().out


def test_a_table_names_files_whose_names_are_no_text(tmp_path):
    odd = os.fsdecode(b"odd, \xfc.png")
    with write_csv(tmp_path / "people.csv", COCO) as write:
        write_result(write, Result(image_frame(odd), [PERSON]))
    assert b'\r\n"odd, \xfc.png",,,' in (tmp_path / "people.csv").read_bytes()


def test_without_people_the_file_is_an_empty_list_and_an_error_keeps_the_old_file(tmp_path):
    path = tmp_path / "people.json"
    with write_json(path):
        pass
    assert json.loads(path.read_text()) == []
    with pytest.raises(OSError), write_json(path) as write:
        write_result(write, Result(Frame(CAMERA, GREY, 0), [PERSON]))
        raise OSError("disk full")
    assert json.loads(path.read_text()) == []
    assert list(tmp_path.iterdir()) == [path]


def write_result(write, result):
    write(record_of(result, image_numbers([result.frame.source])))


def image_frame(path, image=GREY):
    return Frame(Source("image", Path(path)), image)


def test_ids_are_numbers_only_where_no_two_images_have_the_same():
    names = ["camA/000001.png", "camB/000001.png", "42.jpg", "0042.jpg", "000000000139.jpg", "x.png", f"{10**20}.png"]
    sources = parse_standard_input("\n".join([*names, "139.mp4"]).encode())
    numbers = image_numbers(sources)
    assert numbers == {names[4]: 139}
    frames = [*(Frame(source, GREY) for source in sources[:-1]), Frame(sources[-1], GREY, 3), Frame(CAMERA, GREY, 3)]
    ids = [record_of(Result(frame), numbers)["image_id"] for frame in frames]
    assert ids == [*names[:4], 139, *names[5:], "139.mp4#3", "camera 2#3"]


def write_coco_file(path, results):
    with write_coco(path, [result.frame.source for result in results], COCO) as write:
        for result in results:
            write_result(write, result)
    return json.loads(path.read_text())


def test_a_coco_data_set_is_read_by_the_other_tools(tmp_path):
    """The linter accepts it, and the store builder builds it. One of the images in folders is stored on its side."""
    folder = tmp_path / "photos"
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (90, 70, 3)).astype(np.uint8)
    for name in ("a/000001.jpg", "b/000001.jpg", "139.png"):
        write_image(folder / name, noise)
    (folder / "b" / "turned.jpg").write_bytes(with_orientation(encode(np.rot90(noise).copy()), 6))
    results = []
    for source, count in zip(find_sources([folder], recursive=True), (1, 0, 2, 1), strict=True):
        people = [Person(rng.uniform(1, 69, (18, 3)), 0.75) for _ in range(count)]
        results.append(Result(Frame(source, read_image(source.path)), people))
    path = tmp_path / "coco.json"
    write_coco_file(path, results)
    assert not read_annotation_file(path, folder=folder, opens_images=True).adjustments.contradictions
    build_store(folder, path, tmp_path / "a.h5", workers=1)
    with Store(tmp_path / "a.h5") as store:
        assert sorted(store.image_ids.tolist()) == [1, 3, 139], "two are copies of one image"
        assert store.num_people == 4


def test_no_two_images_of_a_coco_data_set_have_the_same_file_name(tmp_path):
    paths = [tmp_path / "a.mp4", tmp_path / "a.mkv", tmp_path / "a" / "000000.jpg"]
    (tmp_path / "a").mkdir()
    for path in paths:
        path.touch()
    videos = [Source("video", path) for path in paths[:2]]
    frames = [*(Frame(video, GREY, 0, 0.0, 25.0) for video in videos), image_frame(paths[2])]
    images = write_coco_file(tmp_path / "coco.json", list(map(Result, frames)))["images"]
    assert [image["file_name"] for image in images] == ["a-2/000000.jpg", "a-3/000000.jpg", "a/000000.jpg"]
