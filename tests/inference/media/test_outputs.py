"""Files of people, drawn images and videos, and their names."""

import json
from pathlib import Path

import numpy as np
import pytest

from posenet.inference.media.outputs import DrawingWriter, drawing_suffix, open_people_file, output_paths
from posenet.inference.media.sources import CameraSource, FileSource, Frame, find_sources
from posenet.inference.person import Person
from tests.helpers.videos import GREY, read_video, write_video

PERSON = Person(np.full((18, 3), 0.5, np.float32), 0.75)
CAMERA = CameraSource(2)


def test_output_names_are_unique_and_have_writable_formats(tmp_path):
    sources = [*find_sources(["-"], ["a.jpg", "x/A.JPG", "a.mp4", "b.webm", "c.raw", "d.pgm"]), CAMERA]
    sources += find_sources(["-", "/dev/video0"], ["http://host/clip.mp4?a=b", "rtsp://me:secret@host:554/"])
    paths = output_paths(sources, tmp_path, drawing_suffix)
    names = [paths[source].name for source in sources]
    assert names == [
        "a.jpg",
        "A-2.JPG",
        "a.mp4",
        "b.mp4",
        "c.png",
        "d.png",
        "camera-2.mp4",
        "clip.mp4",
        "host.mp4",
        "camera-video0.mp4",
    ]
    assert {path.parent for path in paths.values()} == {tmp_path}


@pytest.mark.parametrize("name", ["people.json", "people.jsonl"])
def test_people_are_written_with_image_frame_and_time(tmp_path, name):
    image = FileSource("image", Path("d/000000000139.jpg"))
    video = FileSource("video", Path("v.mp4"))
    with open_people_file(tmp_path / name) as output:
        output.write(Frame(image, GREY), [PERSON, PERSON], GREY)
        output.write(Frame(video, GREY, 3, 0.12, 25.0), [PERSON], GREY)
        output.write(Frame(video, GREY, 4, 0.16, 25.0), [], GREY)
        if name.endswith("l"):
            assert (tmp_path / name).read_text().count("\n") == 3, "complete at any time"
    text = (tmp_path / name).read_text()
    people = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
    assert [person["image_id"] for person in people] == [139, 139, "v.mp4#3"]
    assert people[0].keys() == {"image_id", "category_id", "keypoints", "score", "file_name"}
    assert people[2]["frame"] == 3 and people[2]["time"] == 0.12 and people[2]["file_name"] == "v.mp4"


def test_without_people_the_file_is_an_empty_list_and_an_error_keeps_the_old_file(tmp_path):
    with open_people_file(tmp_path / "people.json"):
        pass
    assert json.loads((tmp_path / "people.json").read_text()) == []
    with pytest.raises(OSError), open_people_file(tmp_path / "people.json") as output:
        output.write(Frame(CAMERA, GREY, 0), [PERSON], GREY)
        raise OSError("disk full")
    assert json.loads((tmp_path / "people.json").read_text()) == []
    assert len(list(tmp_path.iterdir())) == 1


def test_a_drawn_video_is_finished_when_the_next_source_starts(library, tmp_path):
    video = FileSource("video", tmp_path / "in" / "clip.mp4")
    write_video(video.path)
    paths = output_paths([video, CAMERA], tmp_path, drawing_suffix)
    with DrawingWriter(paths) as writer:
        for number in range(3):
            writer.write(Frame(video, GREY, number, number / 10, 10.0), [], GREY)
        assert not paths[video].exists()
        writer.write(Frame(CAMERA, GREY, 0, 0.0, 10.0), [], GREY)
        assert len(read_video(paths[video])) == 3
        writer.write(Frame(CAMERA, GREY, 1, 0.8, 10.0), [], GREY)
    assert read_video(paths[CAMERA])[-1].seconds == pytest.approx(0.8, abs=1e-3), "the pace is that of the camera"


def test_after_an_error_the_earlier_video_stays(library, tmp_path):
    paths = {CAMERA: tmp_path / "camera-2.mp4"}
    paths[CAMERA].write_bytes(b"earlier")
    with pytest.raises(OSError, match="of another output"):
        with DrawingWriter(paths) as writer:
            writer.write(Frame(CAMERA, GREY, 0, 0.0, 10.0), [], GREY)
            raise OSError("of another output")
    assert paths[CAMERA].read_bytes() == b"earlier" and list(tmp_path.iterdir()) == [paths[CAMERA]]
