"""``posenet.predict``: from inputs to files, from Python."""

import contextlib
import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import posenet
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.images import write_image
from posenet.inference.predict import PredictionSummary, predict
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.settings import InferenceConfig
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.spot_networks import SpotNetwork, spot_image
from tests.helpers.videos import FakeCapture, read_video, write_spot_video, write_video

BATCH_SIZE = 4


@pytest.fixture(autouse=True)
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """A video of a person who walks."""
    pytest.importorskip("av", reason="needs PyAV (the extra video)")
    return write_spot_video(tmp_path / "clip.mp4")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, x in (("a.png", 40), ("b.png", 70)):
        write_image(tmp_path / "photos" / name, spot_image(98, 132, (x, 20), (90, 60), 4))
    return tmp_path / "photos"


def spot_predictor() -> Predictor:
    return Predictor(SpotNetwork(), InferenceConfig(height=64, batch_size=BATCH_SIZE), min_score=0)


def count_predicted(inputs: Any, **options: Any) -> tuple[int, PredictionSummary]:
    """How many images the network gets in a prediction, and what the prediction returns."""
    predictor = spot_predictor()
    summary = predict(inputs, predictor, **options)
    return sum(shape[0] for shape in predictor.network.network.shapes), summary


def stop_after(number: int) -> dict[str, Any]:
    """Options that end a prediction after so many results."""
    calls = itertools.count(1)
    return {"stop_requested": lambda: next(calls) >= number}


@pytest.mark.parametrize("json_name", ["p.jsonl", "people"])
def test_inputs_whose_outputs_are_complete_are_left_out(photos: Path, clip: Path, json_name: str) -> None:
    """A video that was interrupted is predicted from its beginning, and an image whose drawing was deleted again."""
    inputs = [photos / "a.png", clip, photos / "b.png"]
    predict(inputs, spot_predictor(), output="whole", json="whole" + json_name)
    options = {"output": "drawn", "json": json_name, "resume": True}
    Path("drawn").mkdir()
    Path("drawn/clip.part.mp4").write_text("of the user")
    assert count_predicted(inputs, **options, **stop_after(10))[1].is_interrupted
    assert sorted(os.listdir("drawn")) == ["a.png", "clip.part-2.mp4", "clip.part.mp4"]
    assert Path("drawn/clip.part.mp4").read_text() == "of the user"
    number, summary = count_predicted(inputs, **options)
    assert (number, summary.done, summary.counts["video frames"]) == (23, 1, 22)
    assert str(summary) == "23 detections in 1 image and 22 video frames; 1 input done before"
    assert count_predicted(inputs, **options)[0] == 0
    Path("drawn/b.png").unlink()
    numbers: list[int | None] = []
    predict(photos, lambda num_images: numbers.append(num_images) or spot_predictor(), **options)
    assert numbers == [1], "those that are left out do not count for the choice of the backend"
    for name in ("a.png", "b.png"):
        assert Path("drawn", name).read_bytes() == Path("whole", name).read_bytes()
    for one, other in zip(read_video("drawn/clip.mp4"), read_video("whole/clip.mp4"), strict=True):
        assert np.array_equal(one.image, other.image)
    files = ["p.jsonl"] if json_name == "p.jsonl" else ["people/a.json", "people/clip.json", "people/b.json"]
    for name in files:
        assert Path(name).read_bytes() == Path("whole" + name).read_bytes() != b""


def test_files_of_all_people_are_put_together_at_the_end(photos: Path, clip: Path) -> None:
    pytest.importorskip("posenet.inference.tracking")
    inputs = [photos, clip]
    files = {"json": "p.jsonl", "coco": "c.json", "csv": "p.csv"}
    predict(inputs, spot_predictor(), **{name: f"whole-{file}" for name, file in files.items()})
    predict(inputs, spot_predictor(), resume=True, **files, **stop_after(5))
    assert len(json.loads(Path("c.json").read_text())["images"]) == 5
    with contextlib.suppress(FileNotFoundError):
        Path("p.csv").unlink()
    number, _ = count_predicted(inputs, resume=True, **files)
    assert number == 22
    for file in files.values():
        assert Path(file).read_bytes() == Path(f"whole-{file}").read_bytes()
    assert count_predicted(inputs, resume=True, **files)[0] == 0


def test_more_inputs_continue_a_file_of_lines(photos: Path) -> None:
    predict(photos / "b.png", spot_predictor(), json="p.jsonl")
    number, _ = count_predicted(photos, json="p.jsonl", coco="c.json", resume=True)
    assert number == 1
    names = [json.loads(line)["file_name"] for line in Path("p.jsonl").read_text().splitlines()]
    assert names == [str(photos / "b.png"), str(photos / "a.png")]
    images = json.loads(Path("c.json").read_text())["images"]
    assert [image["file_name"] for image in images] == ["b.png", "a.png"], "in the order of the lines"


def test_inputs_that_could_not_be_read_completely_are_tried_again(photos: Path) -> None:
    (photos / "c.png").write_bytes(b"no image")
    cut = write_video(photos / "d.mkv")
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 6 // 10])
    options = {"json": "p.jsonl", "resume": True}
    _, first = count_predicted(photos, **options)
    lines = Path("p.jsonl").read_text()
    _, second = count_predicted(photos, **options)
    assert second.done == 2 and Path("p.jsonl").read_text() == lines
    assert list(map(str, first.unreadable.values())) == list(map(str, second.unreadable.values()))
    (photos / "c.png").write_bytes((photos / "a.png").read_bytes())
    _, third = count_predicted(photos, **options)
    assert third.counts["images"] == 1 and [source.path for source in third.unreadable] == [cut]


@pytest.mark.parametrize("line", ['{"image_id": 1, "keypoints": []}', "[]", "mine", '{"file_name": 7, "people": []}'])
def test_a_file_of_lines_of_something_else_is_refused_and_stays(photos: Path, line: str) -> None:
    Path("p.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match="line 1 of p.jsonl"):
        predict(photos, spot_predictor(), json="p.jsonl", resume=True)
    assert Path("p.jsonl").read_text() == line + "\n"


def test_what_killed_runs_have_left_is_removed(photos: Path) -> None:
    names = [".p.csv.7.tmp", ".p.jsonl.9.tmp", "drawn/.a.png.7.tmp", "drawn/.b.png.8-2.tmp"]
    for name in [*names, ".other.json.7.tmp"]:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    predict(photos, spot_predictor(), json="p.jsonl", csv="p.csv", output="drawn", resume=True)
    assert not any(Path(name).exists() for name in names) and Path(".other.json.7.tmp").exists()


def test_a_drawing_that_its_format_does_not_allow_is_the_error_of_that_input(photos: Path) -> None:
    wide = photos / "wide.webp"
    wide.write_bytes(encode(np.zeros((8, 8, 3), np.uint8), ".webp"))
    predictor = spot_predictor()
    huge = np.zeros((2, 20000, 3), np.uint8)  # WebP has at most 16383 pixels
    (photos / "aa.png").write_bytes(encode(huge, ".png"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posenet.inference.outputs.drawing_suffix", lambda source: ".webp")
        summary = predict(photos, predictor, output="drawn", json="p.jsonl")
        predict(photos, predictor, output="again", json="people")
    [(source, error)] = summary.unreadable.items()
    assert source.stem == "aa" and "aa.png" in str(error)
    assert sorted(os.listdir("drawn")) == ["a.webp", "b.webp", "wide.webp"]
    assert "aa.png" not in Path("p.jsonl").read_text()
    assert sorted(os.listdir("people")) == ["a.json", "b.json", "wide.json"], "what was begun is discarded"


def test_without_pyav_a_video_is_refused_before_anything_is_written(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="PyAV"):
        predict(clip, spot_predictor(), output="drawn")
    assert not Path("drawn").exists()


@pytest.mark.parametrize("error", [ValueError("no such size"), OSError(errno.ENOSPC, "the disk is full")])
def test_a_writer_that_fails_in_a_video_ends_its_outputs_and_a_full_disk_ends_the_prediction(
    photos: Path, clip: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    from posenet.inference.media.video import VideoWriter

    write, numbers = VideoWriter.write, itertools.count()

    def fail(writer: VideoWriter, image: np.ndarray, seconds: float) -> None:
        if next(numbers) == 2:
            raise error
        write(writer, image, seconds)

    monkeypatch.setattr(VideoWriter, "write", fail)
    options: dict[str, Any] = {"output": "drawn", "json": "p.jsonl"}
    if isinstance(error, OSError):
        with pytest.raises(OSError, match="the disk is full"):
            predict([clip, photos], spot_predictor(), **options)
        assert not Path("drawn").exists()
        return
    summary = predict([clip, photos], spot_predictor(), **options)
    assert "clip.mp4 cannot be written: ValueError: no such size" in str(*summary.unreadable.values())
    assert sorted(os.listdir("drawn")) == ["a.png", "b.png"]
    assert not any("frames" in json.loads(line) for line in Path("p.jsonl").read_text().splitlines())


def test_lines_of_an_earlier_prediction_are_replaced_and_stay_under_other_names(photos: Path) -> None:
    for name in ("a.png", "b.png"):
        predict(photos / name, spot_predictor(), json="p.jsonl", overwrite=True)
        if name == "a.png":
            os.link("p.jsonl", "kept.jsonl")
    names = [[json.loads(line)["file_name"] for line in open(file)] for file in ("kept.jsonl", "p.jsonl")]
    assert names == [[str(photos / "a.png")], [str(photos / "b.png")]]


def test_a_prediction_that_is_stopped_before_the_first_image_that_can_be_read_is_no_error(photos: Path) -> None:
    (photos / "0.png").write_bytes(b"no image")
    summary = predict(photos, spot_predictor(), json="p.json", **stop_after(1))
    assert summary.is_interrupted and not summary.has_frames and json.loads(Path("p.json").read_text()) == []


def test_a_network_that_cannot_be_loaded_leaves_no_empty_folder(photos: Path) -> None:
    Path("mine").mkdir()
    for output in ("drawn", "mine"):
        with pytest.raises(CheckpointError, match=r"none\.pth"):
            predict(photos, "none.pth", output=output)
    assert not Path("drawn").exists() and Path("mine").is_dir()


@pytest.mark.parametrize("others", [[], ["photos"]], ids=["at the end", "before other inputs"])
def test_a_drawn_video_that_was_not_completed_is_drawn_again(
    clip: Path, photos: Path, others: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from posenet.inference.media.video import VideoWriter

    def fail(writer: VideoWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options = {"json": "p.jsonl", "output": "drawn", "resume": True}
    with monkeypatch.context() as full_disk:
        full_disk.setattr(VideoWriter, "close", fail)
        with pytest.raises(OSError, match="No space left"):
            predict([clip, *others], spot_predictor(), **options)
    assert not Path("drawn/clip.mp4").exists()
    summary = predict([clip, *others], spot_predictor(), **options)
    assert len(list(read_video("drawn/clip.mp4"))) == summary.counts["video frames"] == 22


def test_drawings_go_into_a_new_folder_if_no_output_is_named(photos: Path) -> None:
    for folder in ("predictions", "predictions-2"):
        summary = posenet.predict(photos, spot_predictor())
        assert summary.files == [folder] and repr(summary) == "<PredictionSummary 2 people in 2 images>"
        assert sorted(path.name for path in Path(folder).iterdir()) == ["a.png", "b.png"]
        assert not np.array_equal(cv2.imread(f"{folder}/a.png"), cv2.imread("photos/a.png"))


@pytest.mark.parametrize("name", ["people", "new.2026/", "there.2026"])
def test_a_folder_gets_a_file_of_people_for_each_input(photos: Path, clip: Path, name: str) -> None:
    Path("there.2026").mkdir()
    write_image(photos / "empty.png", np.zeros((64, 64, 3), np.uint8))
    summary = predict([photos, clip], spot_predictor(), json=name, csv="people.csv")
    assert summary.files == [name, "people.csv"]
    files = {path.name: json.loads(path.read_text()) for path in Path(name).iterdir()}
    assert {name: len(entries) for name, entries in files.items()} == {
        "a.json": 1,
        "b.json": 1,
        "empty.json": 0,
        "clip.json": 22,
    }
    assert [entry["frame"] for entry in files["clip.json"]] == list(range(22))
    assert files["a.json"][0]["file_name"].endswith("a.png")
    with pytest.raises(DataError, match="exists"):
        predict(photos, spot_predictor(), json=name)
    Path("file").touch()  # a name without a suffix is that of a folder only if there is no such file
    predict(photos, spot_predictor(), json="file", overwrite=True)
    assert len(json.loads(Path("file").read_text())) == 2


@pytest.mark.parametrize("inputs", ["missing.png", ["missing.png"], []])
def test_inputs_that_do_not_exist_are_an_error_before_anything_is_written(inputs: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file|no input"):
        predict(inputs, spot_predictor(), json="p.json")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "selection", [{"stride": 0}, {"stride": 1.5}, {"start": -1.0}, {"start": float("nan")}, {"duration": float("nan")}]
)
def test_a_selection_without_frames_is_refused(clip: Path, selection: dict[str, float]) -> None:
    name, value = next(iter(selection.items()))
    for run in (predict, lambda path, predictor, **options: list(predictor.stream(path, **options))):
        with pytest.raises(ConfigError, match=f"{name} {value}"):
            run(clip, spot_predictor(), **selection)


@pytest.mark.parametrize("orientation", [1, 6])
def test_large_photographs_are_read_smaller_if_nobody_draws_them(
    orientation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("large.jpg")
    stored = spot_image(1200, 1600, (300.0, 250.0), (1100.0, 760.0), 60)
    path.write_bytes(with_orientation(cv2.imencode(".jpg", stored)[1].tobytes(), orientation))
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=128), min_score=0)
    whole = predictor(path)
    results: list[Result] = []
    monkeypatch.setattr(PredictionSummary, "add", lambda _, result: results.append(result))
    for options in ({"coco": "people.json"}, {"output": "drawn"}):
        predict(path, predictor, **options)
    reduced, drawn = results
    assert whole.frame.size == reduced.frame.size == drawn.image.shape[:2]
    height, width = whole.frame.size
    assert reduced.frame.image.shape == (height // 8, width // 8, 3)
    assert drawn == whole
    np.testing.assert_allclose(reduced.keypoints[..., :2], whole.keypoints[..., :2], atol=1)
    np.testing.assert_allclose(reduced.keypoints[..., 2], whole.keypoints[..., 2], atol=0.01)
    [entry] = json.loads(Path("people.json").read_text())["images"]
    assert (entry["height"], entry["width"]) == whole.frame.size


def test_a_photograph_of_which_all_maps_are_drawn_is_read_whole_and_a_video_gets_a_folder(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("photo.jpg").write_bytes(encode(spot_image(128, 160, (30.0, 25.0), (110.0, 76.0), 6)))
    predictor = Predictor(SpotNetwork(), InferenceConfig(height=64), min_score=0)
    results: list[Result] = []
    monkeypatch.setattr(PredictionSummary, "add", lambda _, result: results.append(result))
    predict(["photo.jpg", clip], predictor, heatmaps="maps")
    assert results[0].frame.image.shape == (128, 160, 3) and predictor.reduction_of((128, 160)) == 2
    assert sorted(os.listdir("maps")) == ["clip", "photo.jpg"]
    assert sorted(os.listdir("maps/clip")) == [f"{number:06d}.jpg" for number in range(22)]


@pytest.mark.parametrize(
    "size, scales, expected",
    [
        ((3000, 4000), [1.0], 4),
        ((3000, 4000), [2.0, 0.5], 2),
        ((3000, 4002), [1.0], 2),
        ((3001, 4000), [1.0], 1),
        ((480, 640), [1.0], 1),
        ((8192, 8192), [1.0], 8),
    ],
)
def test_a_photograph_is_only_reduced_to_whole_pixels_and_not_below_the_input_of_the_network(
    size: tuple[int, int], scales: list[float], expected: int
) -> None:
    assert Predictor(SpotNetwork(), scales=scales).reduction_of(size) == expected


def test_people_of_a_camera_are_written_until_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    request = FakeCapture.install(monkeypatch, count=3)
    for _ in range(4):
        request.release()
    summary = predict("0", spot_predictor(), json="p.jsonl", stop_requested=Path("p.jsonl").exists)
    assert summary.is_interrupted and [path.name for path in Path().iterdir()] == ["p.jsonl"]


def test_a_prediction_without_people_says_which_min_score_shows_some(
    photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predictor = spot_predictor()
    best = max(person.score for result in predictor.stream(str(photos)) for person in result)
    predictor.min_score = 0.9
    predict(photos, predictor, progress=False)
    text = f"no person has a score of at least 0.9; the best has {best:.2f}: --min-score "
    [line] = [message for message in caplog.messages if message.startswith(text)]
    predictor.min_score = float(line.removeprefix(text).removesuffix(" shows it"))
    assert best - 0.05 < predictor.min_score <= best
    caplog.clear()
    assert predict(photos, predictor, progress=False).counts["detections"] and not caplog.messages


def test_a_service_has_no_standard_streams(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(f"sys.{name}", None)
    (photos / "damaged.png").write_bytes(b"no image")
    summary = posenet.predict(photos, spot_predictor(), output="drawn", json="p.jsonl")
    assert summary.counts["images"] == 2 and sorted(os.listdir("drawn")) == ["a.png", "b.png"]
