"""The build-hdf5 tool: its arguments, summary and errors, and builds that are interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.data.build import build_store
from posenet.data.inspection import verify_store
from posenet.data.store import Store
from tests.helpers.drawn_data import document, person, write_annotations, write_coco

Coco = tuple[Path, Path]
"""Image folder and annotation file."""

INPUTS = "--images images --annotations annotations.json"
SCRIPT = Path(__file__).parents[2] / "tools" / "build_hdf5.py"


@pytest.fixture
def coco(tmp_path: Path) -> Coco:
    """Image folder and annotations of three images."""
    return write_coco(tmp_path)


def tool(*arguments: object) -> int:
    return run_tool("build-hdf5", [str(argument) for argument in arguments])


def tool_arguments(coco: Coco, output: Path) -> list[object]:
    return ["--images", coco[0], "--annotations", coco[1], "--output", output, "--workers", 1]


class TestCommand:
    def test_a_built_store_is_summarized_and_verified(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (coco[0] / "000000000002.jpg").unlink()
        assert tool(*tool_arguments(coco, tmp_path / "new" / "folder" / "a.h5"), "--verify") == 0
        output = capsys.readouterr().out
        for line in ("images        2", "people        2", "main persons  2", "crowds        0", "skipped       1"):
            assert line in output
        assert "000000000002.jpg (image 2): No such file" in output and "a.h5 is intact" in output
        assert tool("--output", tmp_path / "new" / "folder" / "a.h5", "--verify") == 0
        assert "a.h5 is intact" in capsys.readouterr().out

    def test_the_data_sets_of_a_run_are_inspected_by_name(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, image_ids in (("a", [1, 2]), ("b", [3])):
            build_store(*coco, tmp_path / f"{name}.h5", image_ids=image_ids, workers=1)
        sets = f'data.train=[{{path="{tmp_path}/a.h5", name="first"}}, {{path="{tmp_path}/b.h5", weight=2}}]'
        assert tool("--stats", "--verify", "--preview", tmp_path / "drawn", "--set", sets) == 0
        output = capsys.readouterr().out
        rows = [line.split() for line in output.splitlines()]
        assert ["first", "2", "2", "50.0%"] in rows and ["b", "1", "2", "50.0%"] in rows
        assert "== first" in output and "== b" in output and "first is intact" in output
        assert len(list((tmp_path / "drawn").iterdir())) == 3
        assert tool("--stats") == 2
        assert "name the store with --output" in capsys.readouterr().err

    def test_statistics_are_printed_and_previews_drawn(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        store = tmp_path / "a.h5"
        assert tool(*tool_arguments(coco, store), "--stats") == 0
        assert "main persons (training samples)      3" in capsys.readouterr().out
        previews = ["--preview", tmp_path / "previews", "--preview-count", 2, "--set", "train.input_size=64"]
        assert tool("--output", store, "--stats", *previews) == 0
        assert "2 samples" in capsys.readouterr().out and len(list((tmp_path / "previews").iterdir())) == 2

    def test_stores_that_share_images_give_status_2(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name, ids in (("a", (1, 2)), ("b", (3,)), ("c", (2, 3))):
            assert tool(*tool_arguments(coco, tmp_path / f"{name}.h5"), "--image-ids", *ids) == 0
        assert tool("--check-split", tmp_path / "a.h5", tmp_path / "b.h5") == 0
        assert tool("--check-split", tmp_path / "a.h5", tmp_path / "c.h5") == 2
        captured = capsys.readouterr()
        assert "the same id       1  (2)" in captured.out and "the same content  1  (2)" in captured.out
        assert "share images" in captured.err

    def test_images_without_annotations_are_stored_verified_and_inspected(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (coco[0] / "000000000002.jpg").write_bytes(b"no image")
        arguments = ["--images", coco[0], "--unlabelled", "--output", tmp_path / "a.h5", "--max-unreadable", 0.5]
        assert tool(*arguments, "--verify", "--stats", "--preview", tmp_path / "drawn") == 0
        output = capsys.readouterr().out
        assert "images        2" in output and "a.h5 is intact" in output
        assert "people        none: images without annotations" in output
        assert "images without annotations (training samples)      2" in output
        assert "skipped       1 image of another size or unreadable" in output and "000000000002.jpg" in output

    def test_images_are_selected_by_ids_in_arguments_or_in_a_file(self, coco: Coco, tmp_path: Path) -> None:
        (tmp_path / "ids.txt").write_text("1\n3, 2")
        assert tool(*tool_arguments(coco, tmp_path / "a.h5"), "--image-ids", 1, 3) == 0
        assert tool(*tool_arguments(coco, tmp_path / "b.h5"), "--image-ids", tmp_path / "ids.txt", "--limit", 2) == 0
        assert Store(tmp_path / "a.h5").image_ids.tolist() == [1, 3]
        assert Store(tmp_path / "b.h5").image_ids.tolist() == [1, 2]

    def test_an_existing_store_needs_overwrite(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = tool_arguments(coco, tmp_path / "a.h5")
        assert tool(*arguments, "--limit", 1) == 0
        assert tool(*arguments) == 2
        assert tool(*arguments, "--overwrite") == 0
        assert "--overwrite" in capsys.readouterr().err
        assert Store(tmp_path / "a.h5").num_images == 3

    @pytest.mark.parametrize(
        "arguments, expected",
        [
            ("", "name the store with --output"),
            ("--output none.h5 --stats", "none.h5 does not exist"),
            ("--check-split none.h5 other.h5", "none.h5 does not exist"),
            ("--output a.h5", "give both --images and --annotations"),
            ("--output a.h5 --verify --images .", "give both --images and --annotations"),
            ("--output none.h5 --verify", "none.h5 does not exist"),
            ("--output a.h5 --images nowhere --annotations annotations.json", "image folder nowhere"),
            ("--output a.h5 --images images --annotations nothing.json", "cannot read annotations"),
            ("--output a.h5 --unlabelled", "--unlabelled needs the folder of the images"),
            ("--output a.h5 --unlabelled --images nowhere", "image folder nowhere"),
            (f"--output a.h5 {INPUTS} --unlabelled", "leave out --unlabelled or --annotations"),
            (f"--output images {INPUTS}", "is a folder"),
            (f"--output annotations.json {INPUTS} --overwrite", "is not an HDF5 file and is not overwritten"),
            (f"--output annotations.json/a.h5 {INPUTS}", "cannot write annotations.json/a.h5: "),
            (f"--output a.h5 {INPUTS} --image-ids 9", "has no image 9"),
            (f"--output a.h5 {INPUTS} --image-ids ids.txt", "cannot read image ids from ids.txt"),
            (f"--output a.h5 {INPUTS} --image-ids 1 two", "image ids are whole numbers"),
        ],
    )
    def test_bad_input_is_reported_in_one_line_with_status_2_and_nothing_is_written(
        self,
        coco: Coco,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: str,
        expected: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        before = sorted(tmp_path.rglob("*"))
        assert tool(*arguments.split()) == 2
        message = capsys.readouterr().err
        assert expected in message
        assert message.count("\n") == 1
        assert "Traceback" not in message
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_store_of_an_earlier_version_is_one_line_with_the_command_that_builds_it_again(
        self, coco: Coco, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "a.h5"
        assert tool(*tool_arguments(coco, path)) == 0
        with h5py.File(path, "r+") as file:
            file.attrs["schema"] = 4
        assert tool("--output", path, "--verify") == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"posenet build-hdf5 --images DIR --annotations JSON --output {path} --overwrite" in error

    @pytest.mark.parametrize("arguments", [["--workers", "0"], ["--limit", "0"], ["--max-unreadable", "2"]])
    def test_numbers_out_of_range_are_rejected(self, coco: Coco, tmp_path: Path, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            tool(*tool_arguments(coco, tmp_path / "a.h5"), *arguments)
        assert caught.value.code == 2


RUN_SCRIPT_WITH_DEFAULT_SIGINT = """
import runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script that Ctrl-C interrupts, as in a terminal.

A program that a shell script starts in the background inherits that SIGINT is ignored, and Python leaves it ignored.
This is right for the tools, because Ctrl-C is meant for the program in the foreground, but the tests may run like this.
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
class TestInterruption:
    @pytest.fixture
    def long_build(self, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
        """A running build that takes many seconds and has written its first images."""
        num_images = 1500
        content = document(
            range(num_images), [person(10**6 + image, image, (200, 200, 50, 60)) for image in range(num_images)]
        )
        pixels = np.random.default_rng(0).integers(0, 256, (500, 500, 3), np.uint8)
        for image in content["images"]:
            image.update(file_name="same.jpg", height=500, width=500)
        (tmp_path / "images").mkdir()
        cv2.imwrite(str(tmp_path / "images" / "same.jpg"), pixels)
        coco = (tmp_path / "images", write_annotations(tmp_path / "a.json", content))
        arguments = [str(argument) for argument in tool_arguments(coco, tmp_path / "a.h5")]
        command = [sys.executable, "-c", RUN_SCRIPT_WITH_DEFAULT_SIGINT, str(SCRIPT), *arguments]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while not any(path.stat().st_size > 0 for path in tmp_path.glob("a.h5.*.partial")):
            assert process.poll() is None
            time.sleep(0.02)
        yield process
        process.kill()
        process.wait()

    def test_control_c_leaves_nothing(self, long_build: subprocess.Popen[str], tmp_path: Path) -> None:
        long_build.send_signal(signal.SIGINT)
        _, errors = long_build.communicate(timeout=30)
        assert long_build.returncode == 130
        assert "Traceback" not in errors
        assert not list(tmp_path.glob("a.h5*"))

    def test_after_a_kill_the_next_build_succeeds(self, long_build: subprocess.Popen[str], tmp_path: Path) -> None:
        long_build.kill()
        long_build.wait()
        assert not (tmp_path / "a.h5").exists()
        assert list(tmp_path.glob("a.h5.*.partial"))
        content = json.loads((tmp_path / "a.json").read_text())
        del content["images"][2:], content["annotations"][2:]
        build_store(tmp_path / "images", write_annotations(tmp_path / "b.json", content), tmp_path / "a.h5")
        assert [path.name for path in tmp_path.glob("a.h5*")] == ["a.h5"]
        with Store(tmp_path / "a.h5") as store:
            assert verify_store(store).num_images == 2
