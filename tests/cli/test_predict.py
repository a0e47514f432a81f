"""``posenet predict`` from its inputs to its files, messages and exit status, with an exported network of spots."""

import dataclasses
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.errors import DataError
from posenet.images import read_image, write_image
from posenet.inference.media.frames import Frame, Source
from posenet.inference.predict import PredictionSummary
from posenet.inference.result import Result
from posenet.person import Person
from posenet.skeleton import COCO
from tests.helpers.spot_networks import spot_image
from tests.helpers.videos import (
    GREY,
    FakeCapture,
    full_disk,
    install_window,
    read_video,
    write_animation,
    write_spot_video,
)

Predict = Callable[..., int]

SPOTS = ((40.2, 20.0), (90.0, 60.4))


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def predict(spot_file: Path) -> Predict:
    """Runs the tool; low scores are kept, because a person of spots has two or three keypoints."""
    return lambda *words: run_tool("predict", ["--checkpoint", str(spot_file), "--min-score", "0", *map(str, words)])


@pytest.fixture
def photos() -> Path:
    """The folder ``photos``, which the tests name as it is."""
    for name in ("a.png", "b.png", "000000000139.png"):
        write_image(Path("photos", name), spot_image(97, 131, *SPOTS, 4))
    write_image(Path("photos/empty.png"), np.zeros((50, 60, 3), np.uint8))
    return Path("photos")


def read_json(name: str) -> Any:
    return json.loads(Path(name).read_text())


@pytest.fixture
def clip() -> Path:
    return write_spot_video(Path("clip.mp4"), 7)


def test_images_are_drawn_and_people_written(
    predict: Predict, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", "people.json", "--coco", "coco.json", "--heatmaps", "maps"]
    assert predict("photos", "--output", "out", *files) == 0
    assert sorted(os.listdir("out")) == ["000000000139.png", "a.png", "b.png", "empty.png"]
    assert sorted(os.listdir("maps")) == ["000000000139.jpg", "a.jpg", "b.jpg", "empty.jpg"]
    assert not np.array_equal(read_image("out/a.png"), read_image("photos/a.png"))
    assert np.array_equal(read_image("out/empty.png"), read_image("photos/empty.png"))
    people = read_json("people.json")
    assert [person["image_id"] for person in people] == [139, "photos/a.png", "photos/b.png"]
    keypoints = np.reshape(people[0]["keypoints"], (17, 3))
    np.testing.assert_allclose(keypoints[0, :2], SPOTS[0], atol=0.5)
    assert np.count_nonzero(keypoints[:, 2]) == 1
    content = read_json("coco.json")
    names = {image["id"]: image["file_name"] for image in content["images"]}
    assert sorted(names.values()) == sorted(os.listdir("out")) and names[139] == "000000000139.png"
    assert [names[person["image_id"]] for person in content["annotations"]] == ["000000000139.png", "a.png", "b.png"]
    found, speed, written = capsys.readouterr().out.splitlines()
    assert found == "3 people in 4 images" and written.startswith("wrote out, ")
    assert re.fullmatch(r"[\d.]+ images/s", speed) and float(speed.split()[0]) > 0.05


def test_the_summary_names_at_most_five_unreadable_sources_and_counts_tracked_people(
    caplog: pytest.LogCaptureFixture,
) -> None:
    images = [Source("image", Path(f"{number}.png")) for number in range(7)]
    video = Source("video", Path("v.mp4"))
    summary = PredictionSummary([*images, video])
    for image in images[:6]:
        for _ in range(2):
            summary.add(Result(Frame(image, error=DataError(f"{image.name} is damaged"))))
    assert caplog.messages == [f"{number}.png is damaged" for number in range(6)]
    assert "6 of 8 inputs" in str(summary.unreadable_error()) and "4.png ..." in str(summary.unreadable_error())
    person = Person(np.ones((18, 3), np.float32), 1.0, COCO)
    for number in range(6):
        tracked = dataclasses.replace(person, id=1 + number % 2)
        summary.add(Result(Frame(video, GREY, number, number / 10), [tracked]))
    for people in ([person] * 3, []):
        summary.add(Result(Frame(images[0], GREY), people))
    assert str(summary) == "2 tracked people and 3 detections in 2 images and 6 video frames"


def test_files_that_the_tool_did_not_write_are_kept_without_overwrite(
    predict: Predict, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("precious.json").write_text("mine")
    write_image(Path("keep/a.png"), GREY)
    for words, name in ((["--json", "precious.json"], "precious.json"), (["--output", "keep"], "a.png")):
        assert predict("photos", *words) == 2
        error = capsys.readouterr().err
        assert f"{name} exists" in error and "--overwrite" in error and error.count("\n") == 1
    assert Path("precious.json").read_text() == "mine" and np.array_equal(read_image("keep/a.png"), GREY)
    assert predict("photos", "--json", "precious.json", "--output", "keep", "--overwrite") == 0
    assert len(read_json("precious.json")) == 3


def test_an_input_of_any_kind_is_never_replaced(
    predict: Predict, photos: Path, spot_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text("[inference]\nheight = 64\n")
    Path("list.txt").write_text("photos/a.png\n")
    os.link("photos/a.png", "a.jsonl")
    Path("link").symlink_to("photos")
    Path("b.csv").symlink_to("photos/b.png")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for words in (
        ["photos", "--config", "mine.toml", "--csv", "mine.toml"],
        ["photos", "--set", "model.skeleton='mine.toml'", "--csv", "mine.toml"],
        ["photos", "--json", "a.jsonl"],
        ["photos", "--csv", "b.csv"],
        ["photos", "--output", "photos"],
        ["photos", "--output", "link"],
        ["photos", "--csv", spot_file],
    ):
        assert predict(*words, "--overwrite") == 2
        error = capsys.readouterr().err
        assert "would replace an input" in error and error.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before


def test_outputs_of_others_are_kept_when_a_prediction_starts_with_resume(
    predict: Predict, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p.csv").write_text("mine")
    words = ["photos", "--json", "p.jsonl", "--csv", "p.csv", "--resume"]
    assert predict(*words) == 2
    assert "p.csv exists" in capsys.readouterr().err and Path("p.csv").read_text() == "mine"
    Path("p.csv").unlink()
    assert predict(*words) == 0
    Path("p.csv").write_text("written until the kill")
    assert predict(*words) == 0 and Path("p.csv").read_text().startswith("file_name")


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere.jpg", "--output", "out"], "no such file"),
        (["photos/a.png", "--output", "photos/b.png"], "cannot write photos/b.png: File exists"),
        (["photos/a.png", "--output", "out.png"], "output out.png would be a folder"),
        (["photos/a.png", "--output", "out", "--set", "model.stacks=2"], "is an exported file"),
        (["photos/a.png", "--output", "out", "--height", "5"], "inference.height"),
        (["photos/a.png", "--output", "out", "--device", "toaster"], "toaster"),
        (["photos/a.png", "--output", "out", "--backend", "torch"], "which PyTorch cannot run"),
        (["photos/a.png", "--output", "out", "--csv", "p.csv", "--resume"], "--resume needs an output"),
        (["photos/a.png", "--resume"], "--resume needs an output"),
        (["0", "--json", "p.jsonl", "--resume"], "unlike camera 0"),
        (["photos/a.png", "--output", "out", "--show"], "--show needs a display"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    predict: Predict,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    Path("clip.mp4").touch()
    assert predict(*words) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error and "Traceback" not in error
    assert not Path("out").exists() and not Path("predictions").exists()


def test_a_video_is_drawn_and_its_people_written(
    predict: Predict, clip: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(clip, "photos/a.png", "--output", "out", "--json", "people.jsonl") == 0
    frames = read_video(Path("out/clip.mp4"))
    assert len(frames) == 7 and frames[6].seconds == pytest.approx(0.6) and frames[0].image.shape == (98, 132, 3)
    assert not np.allclose(frames[0].image, read_video(clip)[0].image, atol=60), "no person is drawn"
    *frames, end, image = [json.loads(line) for line in Path("people.jsonl").read_text().splitlines()]
    assert [(line["frame"], line["time"]) for line in frames] == [(i, i / 10) for i in range(7)]
    assert [(line["width"], line["height"], len(line["people"])) for line in frames] == [(132, 98, 1)] * 7
    assert end == {"file_name": "clip.mp4", "frames": 7}
    assert image["file_name"] == "photos/a.png" and len(image["people"]) == 1 and "frame" not in image
    found, speed, _ = capsys.readouterr().out.splitlines()
    assert found == "8 detections in 1 image and 7 video frames" and speed.endswith(" frames/s")


def test_a_list_on_standard_input(
    predict: Predict, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of files with odd names; special files and loops are skipped and named."""
    names = ["photos/line\nbreak.png", os.fsdecode(b"photos/latin-\xe9.png")]
    for name in names:
        shutil.copy("photos/a.png", name)
    for name in ("fifo.png", "fifo.gif"):
        os.mkfifo(name)
    os.symlink("loop.png", "loop.png")
    os.symlink("/dev/zero", "zero.png")
    bad = ["fifo.png", "fifo.gif", "loop.png", "zero.png", "gone.png"]

    def predict_list(data: bytes) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert predict("-", "--json", "people.json", "--overwrite") == 2
        return capsys.readouterr().err

    errors = predict_list(b"".join(b"%s\0" % os.fsencode(name) for name in [*names, *bad]))
    assert [person["file_name"] for person in read_json("people.json")] == names
    assert "5 of 7 images could not be read" in errors
    assert all(f"cannot read {name}: " in errors for name in bad)
    assert "standard input is no list of files" in predict_list(Path("photos/a.png").read_bytes())
    monkeypatch.setattr("sys.stdin", None)
    assert predict("-", "--json", "-") == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_lines_are_written_into_a_fifo(predict: Predict, photos: Path) -> None:
    os.mkfifo("people.jsonl")
    reader = os.open("people.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    assert predict("photos/a.png", "--json", "people.jsonl") == 0
    [line] = os.read(reader, 2**16).splitlines()
    os.close(reader)
    assert json.loads(line)["file_name"] == "photos/a.png"


def test_a_camera_is_shown_until_the_window_is_closed(predict: Predict, monkeypatch: pytest.MonkeyPatch) -> None:
    request = FakeCapture.install(monkeypatch, count=100)

    def press_key() -> int:
        request.release()
        return ord("q") if len(shown) == 3 else -1

    shown = install_window(monkeypatch, press_key)
    monkeypatch.setattr("posenet.inference.predict.require_display", lambda: None)
    request.release()
    assert predict("3", "--show", "--output", "out") == 0
    assert [int(image[0, 0, 0]) for image in shown] == [1, 2, 3], "a frame waited for the next"
    assert len(read_video(Path("out/camera-3.mp4"))) == 3


@pytest.mark.slow
def test_ctrl_c_keeps_the_people_found_and_finishes_the_video(predict: Predict) -> None:
    clip = write_spot_video(Path("clip.mp4"), 600)
    path = Path("people.jsonl")

    def interrupt_after_two_lines() -> None:
        while not path.exists() or path.read_bytes().count(b"\n") < 2:
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_after_two_lines)
    thread.start()
    assert predict(clip, "--output", "out", "--json", path) == 130
    thread.join()
    num_frames = len(read_video(Path("out/clip.part.mp4")))
    assert 2 <= num_frames < 600 and path.read_text().count("\n") == num_frames
    assert os.listdir("out") == ["clip.part.mp4"]


def test_quiet_prints_only_warnings_and_errors(
    predict: Predict, clip: Path, photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert predict(clip, "photos", "--output", "out", "--quiet") == 0
    assert capfd.readouterr() == ("", "")
    Path("photos/a.png").write_bytes(b"nonsense")
    assert predict("photos", "--output", "out2", "--quiet") == 2
    assert "a.png" in capfd.readouterr().err


def test_a_full_disk_is_an_error_that_names_the_file(
    predict: Predict, clip: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    earlier = Path("out/clip.mp4")
    earlier.parent.mkdir()
    earlier.write_bytes(b"earlier")
    for words in (["--output", "out", "--overwrite"], ["--csv", "p.csv"]):
        with full_disk(1000):
            assert predict(clip, *words) == 2
        assert "File too large" in capfd.readouterr().err
    assert earlier.read_bytes() == b"earlier" and sorted(os.listdir()) == ["clip.mp4", "out"]
    assert os.listdir("out") == ["clip.mp4"]


def test_people_go_to_standard_output_and_messages_to_standard_error(
    predict: Predict, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, key in (("--json", None), ("--coco", "annotations")):
        assert predict("photos", flag, "-") == 0
        captured = capsys.readouterr()
        content = json.loads(captured.out)
        assert len(content[key] if key else content) == 3
        assert "3 people in 4 images" in captured.err and "wrote" not in captured.err
    assert predict("photos", "--csv", "-", "--json", "people.json") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("file_name,frame,time,id,score,left") and captured.out.count("\n") == 4
    assert captured.err.endswith("wrote people.json\n")
    assert sorted(os.listdir()) == ["people.json", "photos"]
    assert predict("photos", "--csv", "-", "--json", "-") == 2
    assert "- would be written twice" in capsys.readouterr().err


@pytest.mark.parametrize("flag, name", [("--json", "p.jsonl"), ("--coco", "p")])
def test_if_no_input_can_be_read_no_file_is_written(
    predict: Predict, capsys: pytest.CaptureFixture[str], flag: str, name: str
) -> None:
    Path("bad.png").write_bytes(b"nonsense")
    Path("empty.png").touch()
    assert predict(".", flag, name) == 2 and not Path(name).exists()
    captured = capsys.readouterr()
    assert "2 of 2 images could not be read" in captured.err and "empty.png cannot be decoded" in captured.err
    assert not captured.out
    Path(name).write_text("an earlier run")
    assert predict("bad.png", flag, name, "--overwrite") == 2 and Path(name).read_text() == "an earlier run"


def test_folders_and_subfolders(predict: Predict, photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a.raw", "._a.png", "._clip.mp4"):
        (photos / name).write_bytes(b"nonsense")
    for camera in ("camA", "camB"):
        write_image(photos / camera / "000001.png", spot_image(97, 131, *SPOTS, 4))
    assert predict("photos", "--recursive", "--output", "out", "--json", "people.json", "--heatmaps", "maps") == 0
    assert "left out of folder photos: 1 " in caplog.text
    for name in ("out/a.png", "out/camA/000001.png", "out/camB/000001.png", "maps/camB/000001.jpg"):
        assert Path(name).is_file()
    ids = [person["image_id"] for person in read_json("people.json")]
    assert ids[0] == 139 and len(set(ids)) == len(ids) == 5, "000001.png is no unique number here"


SIZES = ((97, 131), (131, 97), (64, 64), (97, 131), (97, 300))
"""(height, width) of the images, in turn."""
LIMIT = 120.0
"""Seconds for one prediction."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes, some without people; one that cannot be read, two videos and a GIF."""
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(20):
        height, width = SIZES[number % len(SIZES)]
        image = spot_image(height, width, (20 + number, 20), (width - 20, 40), 4)
        write_image(folder / f"{number:03d}.png", image if number % 4 else np.zeros_like(image))
    (folder / "007b.png").write_bytes(b"no image")
    write_animation(folder / "009b.gif", 3)
    for name in ("005c.mp4", "013c.mp4"):
        write_spot_video(folder / name, 7)
    return folder


def arguments(spot_file: Path, *words: str | Path) -> list[str]:
    return list(map(str, ["--checkpoint", spot_file, "--backend", "onnxruntime", "--min-score", "0", *words]))


@pytest.mark.parametrize(
    "kills, seed",
    [
        pytest.param(3, 1, marks=pytest.mark.slow),
        *(pytest.param(10, seed, marks=pytest.mark.torture) for seed in range(8)),
    ],
)
def test_a_prediction_that_is_killed_again_and_again_writes_everything_once(
    spot_file: Path, inputs: Path, tmp_path: Path, kills: int, seed: int
) -> None:
    """It is killed when it has written some more files or bytes; what the last run leaves is compared."""
    names = {"--output": "drawn", "--json": "p.jsonl", "--csv": "p.csv", "--coco": "c.json"}

    def start(prefix: str) -> subprocess.Popen[bytes]:
        words = [
            inputs,
            "--resume",
            *(word for flag, name in names.items() for word in (flag, tmp_path / prefix / name)),
        ]
        command = [sys.executable, "-m", "posenet", "predict", *arguments(spot_file, *words)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    (tmp_path / "whole").mkdir()
    (tmp_path / "part").mkdir()
    assert start("whole").wait(LIMIT) == 2, "an image cannot be read"
    rng = random.Random(seed)
    lines = tmp_path / "part" / "p.jsonl"

    def progress() -> int:
        drawn = tmp_path / "part" / "drawn"
        return 1000 * (len(list(drawn.iterdir())) if drawn.exists() else 0) + (
            lines.stat().st_size if lines.exists() else 0
        )

    done = 0
    while done < kills:
        limit = progress() + rng.randrange(1, 6000)
        process = start("part")
        deadline = time.monotonic() + LIMIT
        while process.poll() is None and progress() < limit:
            assert time.monotonic() < deadline
            time.sleep(rng.random() * 0.005)
        process.kill()
        if process.wait() == -signal.SIGKILL:
            done += 1
        else:  # it ended too early to be killed: start again
            shutil.rmtree(tmp_path / "part")
            (tmp_path / "part").mkdir()
        if done % 2 and lines.exists():
            with lines.open("ab") as file:
                file.write(b'{"image_id": 3, "peo')
    assert start("part").wait(LIMIT) == 2
    assert sorted(path.name for path in (tmp_path / "part").rglob("*")) == sorted(
        path.name for path in (tmp_path / "whole").rglob("*")
    )
    for path in (tmp_path / "whole").rglob("*"):
        if path.is_file():
            other = tmp_path / "part" / path.relative_to(tmp_path / "whole")
            if path.name == "p.jsonl":
                assert sorted(other.read_bytes().splitlines()) == sorted(path.read_bytes().splitlines())
            else:
                assert other.read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("cut", [1, 20, "a whole line", "a frame of a video"])
def test_a_cut_line_and_the_frames_of_an_unfinished_video_are_written_again(
    predict: Predict, inputs: Path, tmp_path: Path, cut: int | str
) -> None:
    path = tmp_path / "p.jsonl"
    names = [inputs / "001.png", inputs / "005c.mp4"]
    assert predict(*names, "--json", path, "--resume") == 0
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 1 + 7 + 1
    kept = {"a whole line": b"".join(lines[:-1]), "a frame of a video": b"".join(lines[:4])}
    path.write_bytes(kept[cut] if isinstance(cut, str) else whole[:-cut])
    assert predict(*names, "--json", path, "--resume") == 0
    assert path.read_bytes() == whole
