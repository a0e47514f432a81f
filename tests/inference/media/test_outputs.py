"""From inputs to files: sources, frames, names, keypoint files, drawings and sheets."""

import json
import shutil
import sys

import cv2
import numpy as np
import pytest

from posenet.errors import ConfigError, DataError
from posenet.images.image_files import read_image, write_image
from posenet.inference.media.outputs import Window, drawings, output_paths, people_file
from posenet.inference.media.sources import Frame, Source, count_frames, find_sources, read_frames
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.skeleton import COCO
from posenet.visualization.contact_sheet import BACKGROUND, GAP, STRIP, sheet, tile
from posenet.visualization.heatmaps import channel_names, heatmap_sheet, heatmap_sheets, image_maps
from tests.inference.media.test_video import shots, write_video
from tests.inference.test_predictor import Spotlights, picture

SOMEONE = Person(np.full((18, 3), 0.5, np.float32), 0.75)
GREY = np.full((48, 64, 3), 90, np.uint8)
CAMERA = Source("camera", "camera 2", camera=2)


@pytest.fixture
def folder(tmp_path):
    write_image(tmp_path / "in" / "000000000139.png", GREY)
    write_image(tmp_path / "in" / "b.png", GREY)
    write_video(tmp_path / "in" / "clip.mp4", count=5)
    return tmp_path / "in"


def test_sources_are_found_in_order_each_once(folder):
    found = find_sources(
        [str(folder), str(folder / "b.png"), "7", "-"],
        [f"{folder / 'clip.mp4'}\n", "\n", "missing.jpg\n"],
        cameras=[7, 8],
    )
    assert [(source.kind, source.name) for source in found] == [
        ("image", str(folder / "000000000139.png")),
        ("image", str(folder / "b.png")),
        ("video", str(folder / "clip.mp4")),
        ("camera", "camera 7"),
        ("image", "missing.jpg"),
        ("camera", "camera 8"),
    ]


def test_a_file_called_like_a_number_is_a_file(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "b.png").rename(folder / "5")
    assert [source.kind for source in find_sources(["5", "6"])] == ["image", "camera"]


def test_frames_come_source_after_source_and_errors_in_place(folder):
    sources = find_sources(["-"], map(str, [folder / "b.png", "missing.jpg", "missing.mp4", folder / "clip.mp4"]))
    frames = list(read_frames(sources))
    assert [(frame.source.path.name, frame.number) for frame in frames] == [
        ("b.png", None),
        ("missing.jpg", None),
        ("missing.mp4", None),
        *(("clip.mp4", n) for n in range(5)),
    ]
    assert [isinstance(frame.image, DataError) for frame in frames] == [False, True, True] + [False] * 5
    assert frames[-1].rate == 10 and frames[-1].seconds == pytest.approx(0.4)
    assert count_frames(sources) == 8 and count_frames([*sources, CAMERA]) is None


def test_names_are_unique_and_fit_what_is_written(tmp_path):
    sources = find_sources(["-"], ["a.jpg", "x/A.JPG", "a.mp4", "b.webm", "c.raw", "d.pgm"]) + [CAMERA]
    drawn = output_paths(sources, tmp_path)
    assert [drawn[s].name for s in sources] == ["a.jpg", "A-2.JPG", "a.mp4", "b.mp4", "c.png", "d.png", "camera-2.mp4"]
    sheets = output_paths(sources, tmp_path, ".jpg", "")
    assert [sheets[s].name for s in sources] == ["a.jpg", "A-2.jpg", "a", "b", "c.jpg", "d.jpg", "camera-2"]


@pytest.mark.parametrize("name", ["people.json", "people.jsonl"])
def test_people_are_written_with_picture_frame_and_time(tmp_path, name):
    numbered = Source("image", "d/000000000139.jpg", tmp_path / "000000000139.jpg")
    video = Source("video", "v.mp4", tmp_path / "v.mp4")
    with people_file(tmp_path / name) as write:
        write(Frame(numbered, GREY), [SOMEONE, SOMEONE], GREY)
        write(Frame(video, GREY, 3, 0.12, 25.0), [SOMEONE], GREY)
        write(Frame(video, GREY, 4, 0.16, 25.0), [], GREY)
        if name.endswith("l"):
            assert (tmp_path / name).read_text().count("\n") == 3, "complete at any time"
    text = (tmp_path / name).read_text()
    people = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
    assert [person["image_id"] for person in people] == [139, 139, "v.mp4#3"]
    assert people[0].keys() == {"image_id", "category_id", "keypoints", "score", "file_name"}
    assert people[2]["frame"] == 3 and people[2]["time"] == 0.12 and people[2]["file_name"] == "v.mp4"


def test_nobody_is_an_empty_list_and_a_failure_keeps_the_old_one(tmp_path):
    with people_file(tmp_path / "people.json"):
        pass
    assert json.loads((tmp_path / "people.json").read_text()) == []
    with pytest.raises(OSError), people_file(tmp_path / "people.json") as write:
        write(Frame(CAMERA, GREY, 0), [SOMEONE], GREY)
        raise OSError("disk full")
    assert json.loads((tmp_path / "people.json").read_text()) == []
    assert len(list(tmp_path.iterdir())) == 1


def test_drawn_videos_are_ended_one_by_one(folder, tmp_path):
    sources = [s for s in find_sources([str(folder)]) if s.kind == "video"] + [CAMERA]
    paths = output_paths(sources, tmp_path)
    with drawings(paths) as write:
        for number in range(3):
            write(Frame(sources[0], GREY, number, number / 10, 10.0), [], GREY)
        assert not paths[sources[0]].exists()
        write(Frame(CAMERA, GREY, 0, 0.0, 10.0), [], GREY)
        assert len(shots(paths[sources[0]])) == 3
        write(Frame(CAMERA, GREY, 1, 0.8, 10.0), [], GREY)
    assert len(shots(paths[CAMERA])) == 8


def test_a_sheet_has_all_maps_with_their_names(tmp_path):
    predictor = Predictor(Spotlights(), height=128, flip=True)
    image = picture(97, 131, (40, 20), (90, 60), 4)
    maps = image_maps(predictor, image)
    assert maps.shape == (50, 32, 44)
    row, column = np.unravel_index(maps[30].argmax(), maps[30].shape)
    assert abs(4 * row + 1.5 - 20 * 128 / 97) < 4 and abs(4 * column + 1.5 - 40 * 128 / 97) < 4
    names = channel_names(COCO)
    assert len(names) == 50 and names[0] == "neck-nose" and names[30] == "nose" and names[48] == "person"
    result = heatmap_sheet(image, maps, COCO)
    assert 1200 < result.shape[1] < 2400 and result.dtype == np.uint8
    write = heatmap_sheets(predictor, {s: tmp_path / s.stem for s in (CAMERA,)})
    write(Frame(CAMERA, image, 12, 1.0, 5.0), [], image)
    assert read_image(tmp_path / "camera-2" / "000012.jpg").shape == result.shape


@pytest.mark.parametrize("height, width", [(1, 1), (2, 3000), (3000, 2), (700, 500)])
def test_a_sheet_of_any_picture(height, width):
    image = np.full((height, width, 3), 90, np.uint8)
    assert heatmap_sheet(image, np.zeros((50, -(-height // 4), -(-width // 4)), np.float32), COCO).size


def test_tiles_hold_the_whole_picture_and_readable_labels():
    picture = np.full((300, 100, 3), 200, np.uint8)
    one = tile(picture, "a name that is very much longer than the tile is wide, so that it is cut", (150, 200), "0.93")
    assert one.shape == (150 + STRIP, 200, 3)
    assert (one[STRIP:, 75:125] == 200).all() and (one[STRIP:, :70] == BACKGROUND).all()
    assert (one[:STRIP] > 150).any(axis=(0, 2)).sum() > 80
    assert sheet([one] * 5, columns=3).shape == (2 * (150 + STRIP + GAP) + GAP, 3 * (200 + GAP) + GAP, 3)


def test_a_window_without_a_display_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  GUI:                           QT5\n")
    with pytest.raises(ConfigError, match="--show needs a display: there is none"):
        Window.require_display()
    monkeypatch.setenv("DISPLAY", ":77")
    monkeypatch.setattr(sys, "executable", shutil.which("false") or pytest.skip("no command that fails"))
    with pytest.raises(ConfigError, match="DISPLAY=:77 cannot be used"):
        Window.require_display()
    monkeypatch.setattr(cv2, "getBuildInformation", lambda: "  GUI:                           NONE\n")
    with pytest.raises(ConfigError, match="headless"):
        Window.require_display()


@pytest.mark.parametrize(
    "key, visible, closed", [(ord("q"), 1, True), (27, 1, True), (ord("n"), 1, False), (-1, 0, True)]
)
def test_a_window_is_closed_by_keys_or_by_hand(monkeypatch, key, visible, closed):
    shown = []
    for name, fake in dict(
        namedWindow=lambda *_: None,
        imshow=lambda _, image: shown.append(image),
        waitKey=lambda _: key,
        getWindowProperty=lambda *_: visible,
        destroyAllWindows=lambda: None,
    ).items():
        monkeypatch.setattr(cv2, name, fake)
    window = Window()
    window(Frame(CAMERA, GREY, 0), [], GREY)
    assert window.closed == closed and len(shown) == 1
    window.close()
