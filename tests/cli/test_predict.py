"""``posenet predict`` from its inputs to its files, messages and exit status."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

import posenet.cli.predict as tool
from posenet.checkpoints.file import read_checkpoint
from posenet.cli import prediction_drawing, prediction_inputs
from posenet.cli.main import run_tool
from posenet.cli.prediction_people import PredictionSummary
from posenet.errors import DataError
from posenet.images import read_image, write_image
from posenet.inference.media import sources, video_library
from posenet.inference.media.sources import CameraSource, FileSource, Frame, Source, UnreadableFrame, UrlSource
from posenet.inference.media.video_library import open_video_writer
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import Config, InferenceConfig, config_from_dict, config_to_dict
from tests.helpers.media_server import media_server
from tests.helpers.spot_networks import NECK, NOSE, SpotNetwork, spot_image
from tests.helpers.videos import FakeCamera, FakeWindow, full_disk, read_video, write_media

SPOTS = ((40.2, 20.0), (90.0, 60.4))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool with a network that finds spots of light."""
    settings = InferenceConfig(height=128, batch_size=3)
    monkeypatch.setattr(tool, "make_predictor", lambda args, **_: (Predictor(SpotNetwork(), settings), Config()))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    for name in ("a.png", "b.png", "000000000139.png"):
        write_image(folder / name, spot_image(97, 131, *SPOTS, 4))
    write_image(folder / "empty.png", np.zeros((50, 60, 3), np.uint8))
    return folder


def predict(*words: str | Path) -> int:
    return run_tool("predict", ["--checkpoint", "x.pth", *map(str, words)])


@pytest.mark.parametrize(
    ("sources", "parallel"),
    [
        ([FileSource("image", Path("a.jpg"))], False),
        ([FileSource("image", Path(f"{index}.jpg")) for index in range(8)], False),
        ([FileSource("image", Path(f"{index}.jpg")) for index in range(9)], True),
        ([FileSource("video", Path("a.mp4"))], True),
        ([FileSource("video", Path("a.mp4")), CameraSource(0)], False),
        ([UrlSource("video", "rtsp://a")], False),
    ],
)
def test_batches_share_the_cpu_unless_each_image_should_be_fast(sources: list[Source], parallel: bool) -> None:
    assert tool._makes_many_batches(sources) == parallel


def test_images_are_drawn_and_people_written(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--output", out, "--json", path) == 0
    assert sorted(p.name for p in out.iterdir()) == ["000000000139.png", "a.png", "b.png", "empty.png"]
    assert not np.array_equal(read_image(out / "a.png"), read_image(photos / "a.png"))
    assert np.array_equal(read_image(out / "empty.png"), read_image(photos / "empty.png"))
    people = json.loads(path.read_text())
    assert [p["image_id"] for p in people] == [139, str(photos / "a.png"), str(photos / "b.png")]
    assert people[1]["file_name"] == str(photos / "a.png") and people[1]["category_id"] == 1
    keypoints = np.reshape(people[0]["keypoints"], (17, 3))
    np.testing.assert_allclose(keypoints[0, :2], SPOTS[0], atol=0.5)
    assert np.count_nonzero(keypoints[:, 2]) == 1
    assert "3 people in 4 images" in capsys.readouterr().out


def test_min_score_leaves_people_out(stub: None, photos: Path, tmp_path: Path) -> None:
    assert predict(photos, "--json", tmp_path / "people.json", "--min-score", "0.5") == 0
    assert json.loads((tmp_path / "people.json").read_text()) == []


def test_weak_keypoints_are_written_but_not_drawn(stub: None, photos: Path, tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--output", out, "--json", path, "--keypoint-min-score", "1") == 0
    assert np.array_equal(read_image(out / "a.png"), read_image(photos / "a.png"))
    assert len(json.loads(path.read_text())) == 3


def test_unreadable_images_are_skipped_and_reported(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "aa.png").write_bytes(b"nonsense")
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--output", out, "--json", path) == 2
    assert len(list(out.iterdir())) == 4 and len(json.loads(path.read_text())) == 3
    error = capsys.readouterr().err
    assert "1 of 5 images could not be read" in error and "aa.png" in error and "Traceback" not in error


def test_the_last_message_names_at_most_five_unreadable_sources() -> None:
    images = [FileSource("image", Path(f"{number}.png")) for number in range(7)]
    summary = PredictionSummary(images)
    for image in images[:6]:
        summary.add(UnreadableFrame(image, DataError("damaged")), [])
    with pytest.raises(DataError, match=r"^6 of 7 images could not be read: 0.png, 1.png, 2.png, 3.png, 4.png \.\.\.$"):
        summary.raise_if_unreadable()


def test_a_damaged_video_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    video = FileSource("video", Path("v.mp4"))
    summary = PredictionSummary([video])
    for number in range(3):
        summary.add(UnreadableFrame(video, DataError(f"frame {number} is damaged")), [])
    assert caplog.messages == ["frame 0 is damaged"]
    with pytest.raises(DataError, match=r"^1 of 1 input could not be read completely: v.mp4$"):
        summary.raise_if_unreadable()


def test_outputs_with_equal_names_are_numbered(stub: None, photos: Path, tmp_path: Path) -> None:
    for name in ("A.png", "b.gif"):
        write_image(tmp_path / "more" / "x.png", spot_image(97, 131, *SPOTS, 4))
        (tmp_path / "more" / "x.png").rename(tmp_path / "more" / name)
    out = tmp_path / "out"
    assert predict(photos, tmp_path / "more" / "A.png", tmp_path / "more" / "b.gif", "--output", out) == 0
    assert sorted(p.name for p in out.iterdir()) == [
        "000000000139.png",
        "A-2.png",
        "a.png",
        "b-2.png",
        "b.png",
        "empty.png",
    ]


def test_inputs_are_never_replaced(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (photos / "a.png").read_bytes()
    assert predict(photos, "--output", photos) == 2
    assert predict(photos / "a.png", "--json", photos / ".." / "photos" / "a.png") == 2
    (tmp_path / "link").symlink_to(photos)
    assert predict(photos, "--output", tmp_path / "link") == 2
    assert "would replace an input" in capsys.readouterr().err
    assert (photos / "a.png").read_bytes() == before
    assert predict(photos, "--output", tmp_path / "out") == 0
    assert predict(photos, "--output", tmp_path / "out") == 0


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere.jpg", "--output", "out"], "no such file"),
        (["*.xyz", "--output", "out"], "no file matches"),
        (["bare", "--output", "out"], "no images in folder"),
        (["photos/a.png"], "give --output"),
        (["photos/a.png", "--output", "photos/b.png"], "photos/b.png cannot be a folder: a file has that name"),
        (["photos/a.png", "--json", "photos/b.png/people.json"], "photos/b.png cannot be a folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    stub: None,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare").mkdir()
    assert predict(*words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "image",
    [
        np.full((60, 80), 50, np.uint8),
        np.full((60, 80, 4), 50, np.uint8),
        np.full((60, 80, 3), 5000, np.uint16),
        np.full((60, 80), 5000, np.uint16),
        np.full((1, 1, 3), 50, np.uint8),
        np.full((4000, 6000, 3), 50, np.uint8),
        np.full((2, 30000, 3), 50, np.uint8),
    ],
    ids=["grey", "alpha", "16-bit", "16-bit grey", "1x1", "large", "strip"],
)
def test_images_of_every_kind_are_drawn(stub: None, tmp_path: Path, image: np.ndarray) -> None:
    (tmp_path / "in.png").write_bytes(cv2.imencode(".png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes())
    assert predict(tmp_path / "in.png", "--output", tmp_path / "out") == 0
    assert read_image(tmp_path / "out" / "in.png").shape == (*image.shape[:2], 3)


def test_a_checkpoint_with_all_predictor_flags(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_from_dict({"model": {"stacks": 1, "width": 16, "growth": 0}, "inference": {"height": 64}})
    checkpoint = tmp_path / "tiny.pth"
    torch.save(
        {"format": 1, "model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)}, checkpoint
    )
    argv = ["--weights", str(checkpoint), "--device", "cpu", str(photos / "a.png"), "--output", str(tmp_path / "out")]
    flags = "--height 64 --scales 1 1.5 --flip --batch_size 2 --set inference.keypoint_threshold=0.2"
    assert run_tool("predict", argv) == 0
    assert run_tool("predict", argv + flags.split()) == 0
    for words, message in (
        (["--height", "5"], "inference.height"),
        (["--scales", "0"], "inference.scales"),
        (["--set", "model.stacks=2"], "another architecture"),
        (["--set", "x=1"], "x=1"),
        (["--device", "nonsense"], "nonsense"),
        (["--config", "none.toml"], "none.toml"),
    ):
        assert run_tool("predict", [*argv, *words]) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in error and "Traceback" not in error
    assert "config" in read_checkpoint(checkpoint)


def test_an_image_format_without_colours_is_drawn_in_another(stub: None, tmp_path: Path) -> None:
    grey = cv2.cvtColor(spot_image(97, 131, *SPOTS, 4), cv2.COLOR_BGR2GRAY)
    (tmp_path / "in.pgm").write_bytes(cv2.imencode(".pgm", grey)[1].tobytes())
    assert predict(tmp_path, "--output", tmp_path / "out") == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["in.png"]


def test_the_stub_network_finds_nose_and_neck() -> None:
    [person] = Predictor(SpotNetwork(), InferenceConfig(height=128))(spot_image(97, 131, *SPOTS, 4))
    assert person.found.nonzero()[0].tolist() == [NOSE, NECK]


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    with open_video_writer(tmp_path / "clip.mp4", (98, 132), 10) as writer:
        for number in range(7):
            writer.write(spot_image(98, 132, *SPOTS, 4), number / 10)
    return tmp_path / "clip.mp4"


def test_a_video_is_drawn_and_its_people_written(
    stub: None, clip: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, path = tmp_path / "out", tmp_path / "people.jsonl"
    assert predict(clip, photos / "a.png", "--output", out, "--json", path) == 0
    frames = read_video(out / "clip.mp4")
    assert len(frames) == 7 and frames[6].seconds == pytest.approx(0.6) and frames[0].image.shape == (98, 132, 3)
    assert not np.allclose(frames[0].image, spot_image(98, 132, *SPOTS, 4), atol=60), "no person is drawn"
    people = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(p.get("frame"), p.get("time")) for p in people] == [(i, i / 10) for i in range(7)] + [(None, None)]
    captured = capsys.readouterr()
    assert "8 people in 1 image and 7 video frames" in captured.out


def test_heatmaps_are_written_and_one_person_is_not_plural(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(photos / "a.png", "--heatmaps", tmp_path / "maps") == 0
    assert [path.name for path in (tmp_path / "maps").iterdir()] == ["a.jpg"]
    assert "1 person in 1 image\n" in capsys.readouterr().out


def test_no_output_replaces_another(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(photos / "a.png", "--output", tmp_path / "out", "--json", tmp_path / "out" / "a.png") == 2
    assert "would be written twice" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())


def give_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_list_with_nul_after_each_name_as_find_print0_writes_it(
    stub: None, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [photos / "line\nbreak.png", photos / os.fsdecode(b"latin-\xe9.png")]
    for name in names:
        (photos / "a.png").rename(name)
        write_image(photos / "a.png", spot_image(97, 131, *SPOTS, 4))
    give_input(monkeypatch, b"".join(b"%s\0" % bytes(name) for name in names))
    assert predict("-", "--json", tmp_path / "people.json") == 0
    people = json.loads((tmp_path / "people.json").read_text())
    assert [person["file_name"] for person in people] == list(map(str, names))


def test_a_list_on_standard_input(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [photos / "a.png", tmp_path / "gone.png", photos / "b.png"]
    give_input(monkeypatch, b"".join(b"%s\n" % bytes(name) for name in names))
    assert predict("-", "--json", tmp_path / "people.json") == 2
    assert len(json.loads((tmp_path / "people.json").read_text())) == 2
    assert "1 of 3 images could not be read" in capsys.readouterr().err


def test_ctrl_c_keeps_the_people_found_and_finishes_the_video(
    stub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = tmp_path / "clip.mp4"
    with open_video_writer(clip, (98, 132), 10) as writer:
        for number in range(40):
            writer.write(spot_image(98, 132, *SPOTS, 4), number / 10)
    drawn = []

    def draw_and_interrupt(image: np.ndarray, people: Sequence[Person], **_: Any) -> np.ndarray:
        drawn.append(people)
        if len(drawn) == 2:
            signal.raise_signal(signal.SIGINT)
        return image

    monkeypatch.setattr(prediction_drawing, "draw_people", draw_and_interrupt)
    for name, count_people in (
        ("people.json", lambda text: len(json.loads(text))),
        ("people.jsonl", lambda text: text.count("\n")),
    ):
        drawn.clear()
        assert predict(clip, "--output", tmp_path / "out", "--json", tmp_path / name) == 130
        num_frames = len(read_video(tmp_path / "out" / "clip.mp4"))
        assert 2 <= num_frames == len(drawn) < 20
        assert count_people((tmp_path / name).read_text()) == num_frames
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["clip.mp4"]


def test_a_camera_is_shown_until_the_window_is_closed(
    stub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    delivered = []

    class TestCamera(FakeCamera):
        count = 100

        def __init__(self, source: CameraSource) -> None:
            events.append(f"open {source.name}")

        @staticmethod
        def image_at(number: int) -> np.ndarray:
            delivered.append(number)
            return spot_image(98, 132, *SPOTS, 4)

        def close(self) -> None:
            events.append("close camera")

    class TestWindow(FakeWindow):
        @staticmethod
        def require_display() -> None:
            events.append("check display")

        def write(self, frame: Frame, people: Sequence[Person], drawing: np.ndarray) -> None:
            events.append(f"show {frame.number}")
            assert delivered[-1] == frame.number, "a frame waited for the next"
            self.closed = frame.number == 2

    monkeypatch.setattr(sources, "open_camera", TestCamera)
    monkeypatch.setattr(tool, "Window", TestWindow)
    monkeypatch.setattr(prediction_drawing, "Window", TestWindow)
    assert predict("--camera", "3", "--show", "--output", tmp_path) == 0
    assert events == ["check display", "open camera 3", "show 0", "show 1", "show 2", "close camera"]
    assert (tmp_path / "camera-3.mp4").stat().st_size > 500


def test_bad_video_and_camera_input_is_reported_in_one_line(
    stub: None, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    for words, message in (
        (["--show", clip], "--show needs a display"),
        ([clip, "--output", tmp_path], "replace an input"),
        ([clip, "--output", tmp_path / "o", "--codec", "nope"], "codec 'nope'"),
        ([clip, "--output", tmp_path / "o", "--heatmaps", tmp_path / "o"], "two folders"),
        (["--json", tmp_path / "x.json"], "no input"),
        (["--json", tmp_path / "x.json", "--camera", "97"], "camera 97"),
    ):
        assert predict(*words) == 2
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert message in error and "Traceback" not in error


def test_colours_and_line_width_change_the_drawing(stub: None, photos: Path, tmp_path: Path) -> None:
    for i, words in enumerate(([], ["--colours", "person"], ["--line-width", "9"])):
        assert predict(photos / "a.png", "--output", tmp_path / str(i), *words) == 0
    plain, coloured, wide = (read_image(tmp_path / str(i) / "a.png") for i in range(3))
    assert not np.array_equal(plain, coloured) and not np.array_equal(plain, wide)


@pytest.mark.parametrize("flag", ["--min-score", "--keypoint-min-score"])
@pytest.mark.parametrize("value", ["nan", "-0.1", "1.5"])
def test_minimum_scores_outside_0_to_1_are_refused(
    stub: None, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        predict(photos, "--output", tmp_path / "out", f"{flag}={value}")
    assert ended.value.code == 2
    assert f"{flag}: {value} is not between 0 and 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def no_pyav(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_inputs, "has_pyav", lambda: False)
    monkeypatch.setattr(video_library, "has_pyav", lambda: False)


def test_a_part_of_a_video_is_predicted(
    stub: None, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--start", "0.15", "--duration", "0.4", "--stride", "2"]
    assert predict(clip, "--output", tmp_path / "out", "--json", tmp_path / "people.json", *words) == 0
    people = json.loads((tmp_path / "people.json").read_text())
    assert [(person["frame"], person["time"]) for person in people] == [(2, 0.2), (4, 0.4)]
    frames = read_video(tmp_path / "out" / "clip.mp4")
    assert [frame.seconds for frame in frames] == pytest.approx([0, 0.2], abs=1e-3)
    assert "2 people in 2 video frames" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--stride", "0"], ["--start", "-1"], ["--duration", "nan"]])
def test_an_impossible_part_of_a_video_is_refused(
    stub: None, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        predict(clip, "--output", tmp_path / "out", *words)
    assert ended.value.code == 2 and words[0] in capsys.readouterr().err


def test_quiet_prints_only_warnings_and_errors(
    stub: None, clip: Path, photos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert predict(clip, photos, "--output", tmp_path / "out", "--quiet") == 0
    assert capfd.readouterr() == ("", "")
    (photos / "a.png").write_bytes(b"nonsense")
    assert predict(photos, "--output", tmp_path / "out", "--quiet") == 2
    assert "a.png" in capfd.readouterr().err


def test_a_full_disk_is_an_error_and_the_earlier_video_stays(
    stub: None, clip: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    earlier = tmp_path / "out" / "clip.mp4"
    earlier.parent.mkdir()
    earlier.write_bytes(b"earlier")
    with full_disk(1000):
        assert predict(clip, "--output", earlier.parent) == 2
    error = capfd.readouterr().err
    assert "File too large" in error and "WARN" not in error
    assert earlier.read_bytes() == b"earlier" and list(earlier.parent.iterdir()) == [earlier]


def test_a_full_disk_is_noticed_without_pyav(
    no_pyav: None, stub: None, clip: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    test_a_full_disk_is_an_error_and_the_earlier_video_stays(stub, clip, tmp_path, capfd)


def test_one_line_tells_what_pyav_would_add(
    no_pyav: None, stub: None, clip: Path, photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    assert predict(photos, "--json", tmp_path / "people.json") == 0
    assert video_library.WITHOUT_PYAV not in caplog.messages
    assert predict(clip, clip, "--json", tmp_path / "people.json") == 0
    assert caplog.messages.count(video_library.WITHOUT_PYAV) == 1


def test_the_drawn_video_has_the_sound_and_the_rate_of_the_original(stub: None, tmp_path: Path) -> None:
    times = [0.0, 0.1, 0.15, 1.0, 1.6]
    path = write_media(tmp_path / "in.mp4", times, sound=1.7)
    assert predict(path, "--output", tmp_path / "out") == 0
    np.testing.assert_allclose([frame.seconds for frame in read_video(tmp_path / "out" / "in.mp4")], times, atol=1e-3)
    av = pytest.importorskip("av")
    with av.open(str(tmp_path / "out" / "in.mp4")) as container:
        assert container.streams.audio[0].codec_context.name == "aac"


def test_ctrl_c_ends_a_live_stream_with_status_0(stub: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(image: np.ndarray, people: Sequence[Person], **_: object) -> np.ndarray:
        signal.raise_signal(signal.SIGINT)
        return image

    monkeypatch.setattr(prediction_drawing, "draw_people", interrupt)
    with media_server(tmp_path) as address:
        assert predict(f"{address}/live", "--output", tmp_path / "out") == 0
    assert len(read_video(tmp_path / "out" / "live.mp4")) == 1


def test_people_go_to_standard_output_and_messages_to_standard_error(stub, photos, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for flag, parse in (("--json", json.loads), ("--coco", lambda text: json.loads(text)["annotations"])):
        assert predict(photos, flag, "-") == 0
        captured = capsys.readouterr()
        assert len(parse(captured.out)) == 3
        assert "3 people in 4 images" in captured.err and "wrote" not in captured.err
    assert predict(photos, "--csv", "-", "--json", "people.json") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("file_name,frame,time,id,score,left") and captured.out.count("\n") == 4
    assert captured.err.endswith("wrote people.json\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.json", "photos"]
    assert predict(photos, "--csv", "-", "--json", "-") == 2
    assert "- would be written twice" in capsys.readouterr().err


def test_links_and_devices_stay(stub, photos, tmp_path):
    (tmp_path / "link.json").symlink_to("target.json")
    (tmp_path / "null.json").symlink_to("/dev/null")
    for name in ("link.json", "null.json"):
        assert predict(photos, "--json", tmp_path / name) == 0
        assert (tmp_path / name).is_symlink()
    assert len(json.loads((tmp_path / "target.json").read_text())) == 3 and not Path("/dev/null").is_file()


@pytest.mark.parametrize("flag, name", [("--json", "p.json"), ("--json", "p.jsonl"), ("--coco", "p"), ("--csv", "p")])
def test_if_no_input_can_be_read_no_file_is_written(stub, tmp_path, capsys, flag, name):
    (tmp_path / "bad.png").write_bytes(b"nonsense")
    (tmp_path / "empty.png").touch()
    path = tmp_path / name
    assert predict(tmp_path, flag, path) == 2 and not path.exists()
    captured = capsys.readouterr()
    assert "2 of 2 images could not be read" in captured.err and "empty.png is empty" in captured.err
    assert not captured.out
    path.write_text("an earlier run")
    assert predict(tmp_path / "bad.png", flag, path) == 2 and path.read_text() == "an earlier run"


def test_files_that_are_left_out_of_folders_are_counted(stub, photos, tmp_path, caplog):
    for name in ("a.raw", "._a.png", "._clip.mp4"):
        (photos / name).write_bytes(b"nonsense")
    assert predict(photos, "--json", tmp_path / "people.json") == 0
    assert f"left out of folder {photos}: 2 ._, 1 .raw" in caplog.messages


def test_subfolders_are_predicted_and_drawn_into_subfolders(stub, photos, tmp_path):
    for camera in ("camA", "camB"):
        write_image(photos / camera / "000001.png", spot_image(97, 131, *SPOTS, 4))
    out, path = tmp_path / "out", tmp_path / "people.json"
    assert predict(photos, "--recursive", "--output", out, "--json", path, "--heatmaps", tmp_path / "maps") == 0
    assert (out / "camA" / "000001.png").is_file() and (out / "camB" / "000001.png").is_file()
    assert (tmp_path / "maps" / "camB" / "000001.jpg").is_file() and (out / "a.png").is_file()
    ids = [person["image_id"] for person in json.loads(path.read_text())]
    assert ids[0] == 139 and len(set(ids)) == len(ids) == 5, "000001.png is no unique number here"


def test_a_coco_data_set_of_predictions_lists_all_images(stub, photos, tmp_path):
    assert predict(photos, "--coco", tmp_path / "coco.json") == 0
    content = json.loads((tmp_path / "coco.json").read_text())
    names = {image["id"]: image["file_name"] for image in content["images"]}
    assert sorted(names.values()) == ["000000000139.png", "a.png", "b.png", "empty.png"] and names[139].startswith("0")
    assert [names[person["image_id"]] for person in content["annotations"]] == ["000000000139.png", "a.png", "b.png"]
