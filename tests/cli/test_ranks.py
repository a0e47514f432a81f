"""``evaluate`` and ``predict`` in several processes, in shards, and continued after a kill."""

from __future__ import annotations

import functools
import gc
import io
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from posenet.devices.rank_info import RankInfo

import posenet.cli.evaluate as evaluate_tool
import posenet.cli.predict as predict_tool
from posenet.checkpoints.file import write_checkpoint
from posenet.cli import predictor_options
from posenet.cli.main import run_tool
from posenet.cli.ranks import EXCHANGE_MARKER
from posenet.devices.launch import launch
from posenet.errors import TrainingError
from posenet.images import write_image
from posenet.inference.media.people_files import JsonLinesWriter
from posenet.inference.media.progress_file import ProgressFile
from posenet.inference.media.video_library import open_video_writer
from posenet.inference.predictor import Predictor
from posenet.model.posenet import PoseNet
from posenet.settings import Config, InferenceConfig, config_to_dict, load_config
from posenet.synthetic.dataset import write_dataset
from tests.helpers.locks import hold_lock_elsewhere
from tests.helpers.process_runs import fork_process, wait_for_exit
from tests.helpers.spot_networks import SpotNetwork, spot_image
from tests.helpers.videos import full_disk

SIZES = ((97, 131), (131, 97), (64, 64), (97, 131), (97, 300))
"""(height, width) of the images, in turn."""


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools with a network that finds spots of light."""

    def make_predictor(args: object, **_: object) -> tuple[Predictor, Config]:
        return Predictor(SpotNetwork(), InferenceConfig(height=128, batch_size=3)), Config()

    monkeypatch.setattr(predict_tool, "make_predictor", make_predictor)
    monkeypatch.setattr(evaluate_tool, "make_predictor", make_predictor)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of several sizes, some without people, one that cannot be read, and two videos among them."""
    folder = tmp_path_factory.mktemp("inputs")
    for number in range(20):
        height, width = SIZES[number % len(SIZES)]
        image = spot_image(height, width, (20 + number, 20), (width - 20, 40), 4)
        write_image(folder / f"{number:03d}.png", image if number % 4 else np.zeros_like(image))
    (folder / "007b.png").write_bytes(b"no image")
    for name in ("005c.mp4", "013c.mp4"):
        with open_video_writer(folder / name, (98, 132), 10) as writer:
            for number in range(7):
                writer.write(spot_image(98, 132, (20 + 2 * number, 20), (90, 60), 4), number / 10)
    return folder


def predict(folder: Path, inputs: Path, *words: str | Path) -> int:
    """Run the tool with all kinds of outputs into ``folder``."""
    folder.mkdir(exist_ok=True)
    outputs = [
        "--json",
        folder / "p.jsonl",
        "--csv",
        folder / "p.csv",
        "--coco",
        folder / "p.json",
        "--output",
        folder / "d",
    ]
    argv = ["--checkpoint", "x.pth", inputs, *outputs, "--track", "--min-score", "0", *words]
    return run_tool("predict", list(map(str, argv)))


def on_ranks(world_size: int, run: Callable[[], int], allowed: tuple[int, ...] = (0,)) -> None:
    """Call ``run`` in forked processes, as a launcher would start them."""
    launch(world_size, _run_rank, run, allowed, start_method="fork")


def _run_rank(rank_info: RankInfo, run: Callable[[], int], allowed: tuple[int, ...]) -> None:
    gc.freeze()  # collecting objects of the parent, such as its store, could block
    torch.set_num_threads(1)
    try:
        status: Any = run()
    except SystemExit as error:  # another rank reports the error
        status = error.code
    sys.exit(0 if status in allowed else 1)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("world_size", [2, 3])
def test_several_processes_write_the_files_of_one(inputs: Path, tmp_path: Path, world_size: int) -> None:
    assert predict(tmp_path / "one", inputs) == 2
    on_ranks(world_size, lambda: predict(tmp_path / "many", inputs), allowed=(0, 2))
    one = contents(tmp_path / "one")
    assert len(one) == 3 + 22 and one["p.jsonl"].count(b"\n") > 20
    assert contents(tmp_path / "many") == one


def test_several_processes_write_the_results_file_of_one(tmp_path: Path) -> None:
    write_dataset(tmp_path / "coco", 0, 11, 0, 1, 120)
    folder = tmp_path / "coco" / "val2017"
    annotations = tmp_path / "coco" / "annotations" / "person_keypoints_val2017.json"

    def run(name: str) -> int:
        argv = ["--checkpoint", "x.pth", "--images", folder, "--annotations", annotations, "--output", tmp_path / name]
        return run_tool("evaluate", list(map(str, argv)))

    assert run("one.json") == 0
    on_ranks(2, lambda: run("two.json"))
    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    assert not (tmp_path / "two.json.parts").exists()


def test_shards_in_order_are_the_whole(inputs: Path, tmp_path: Path) -> None:
    assert predict(tmp_path / "whole", inputs) == 2
    lines = b""
    drawings: dict[str, bytes] = {}
    for index in range(4):
        folder = tmp_path / str(index)
        assert predict(folder, inputs, "--shard", f"{index}/4") in (0, 2)
        lines += (folder / "p.jsonl").read_bytes()
        new = contents(folder / "d") if (folder / "d").exists() else {}
        assert not drawings.keys() & new.keys()
        drawings |= new
    assert lines == (tmp_path / "whole" / "p.jsonl").read_bytes()
    assert drawings == contents(tmp_path / "whole" / "d")


def test_more_shards_than_images_leave_empty_files(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", spot_image(64, 64, (20, 20), (40, 40), 4))
    sizes = []
    for index in range(3):
        path = tmp_path / f"{index}.jsonl"
        words = ["--checkpoint", "x.pth", tmp_path / "a.png", "--json", path, "--shard", f"{index}/3"]
        assert run_tool("predict", list(map(str, words))) == 0
        sizes.append(path.stat().st_size)
    assert sorted(map(bool, sizes)) == [False, False, True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "3/3"], "shards count from 0"),
        (["--shard", "1"], "such as 0/100"),
        (["--resume", "--csv", "p.csv"], "--resume continues a .jsonl file"),
        (["--list", "missing.txt"], "cannot read the list of files missing.txt"),
    ],
)
def test_flags_that_cannot_be_used(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    argv = ["--checkpoint", "x.pth", str(inputs), "--json", str(tmp_path / "p.jsonl"), *words]
    assert run_tool("predict", argv) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "p.jsonl").exists()


def test_cameras_are_refused_by_several_processes(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--checkpoint", "x.pth", str(inputs), "--camera", "0", "--json", str(tmp_path / "p.jsonl")]
    on_ranks(2, lambda: run_tool("predict", argv), allowed=(2,))
    assert capfd.readouterr().err.count("camera 0 needs a single process") == 1


def run_resumable(path: Path, inputs: Path, *words: str) -> int:
    argv = ["--checkpoint", "x.pth", str(inputs), "--json", str(path), "--resume", *words]
    return run_tool("predict", argv)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("shard", ["0/1", "1/2"])
def test_a_prediction_that_is_killed_again_and_again_writes_every_person_once(
    inputs: Path, tmp_path: Path, world_size: int, shard: str
) -> None:
    """Rank 0 is killed before or after it writes people or records a unit, and may leave a torn line."""
    rng = random.Random(world_size)
    whole = tmp_path / "whole.jsonl"
    run_resumable(whole, inputs, "--shard", shard)
    path = tmp_path / "p.jsonl"
    kills = 0
    while True:
        calls = rng.randrange(1, 16)

        def run(calls: int = calls, after: bool = bool(kills % 2)) -> int:
            if os.environ.get("RANK", "0") == "0":
                kill_at_call(calls, after)
            return run_resumable(path, inputs, "--shard", shard)

        if world_size == 1:
            status = wait_for_exit(fork_process(lambda: os._exit(run())))
            finished = status in (0, 2)
        else:
            try:
                on_ranks(2, run, allowed=(0, 2))
                finished = True
            except TrainingError:
                finished = False
        if finished:
            break
        kills += 1
        if path.exists() and kills % 3 == 0:
            with open(path, "ab") as file:
                file.write(b'{"image_id": "tor')
    assert kills >= 3
    assert path.read_bytes() == whole.read_bytes()
    assert not path.with_name("p.jsonl.parts").exists()


def kill_at_call(calls: int, after: bool) -> None:
    """Kill this process at the n-th time that it writes the people of a frame or records a unit."""
    remaining = [calls]

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            remaining[0] -= 1
            if remaining[0] == 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args)
            if remaining[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted

    JsonLinesWriter.write = wrap(JsonLinesWriter.write)  # type: ignore[method-assign]  # in a forked process
    ProgressFile.record = wrap(ProgressFile.record)  # type: ignore[method-assign]


def test_a_complete_file_is_left_alone_and_other_inputs_are_refused(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    assert run_resumable(path, inputs) == 2
    before = path.read_bytes()
    capsys.readouterr()
    assert run_resumable(path, inputs) == 2 and path.read_bytes() == before
    assert "1 of 23 inputs could not be read completely" in capsys.readouterr().err  # as at the end of the first run
    assert run_resumable(path, inputs, "--min-score", "0.9") == 2
    assert "was written with other --min-score" in capsys.readouterr().err
    assert run_resumable(path, inputs / "001.png") == 2
    assert "was written with other inputs" in capsys.readouterr().err
    path.with_name("p.jsonl.progress").unlink()
    assert run_resumable(path, inputs) == 2
    assert "cannot be continued" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_without_resume_no_progress_file_stays(inputs: Path, tmp_path: Path) -> None:
    assert predict(tmp_path / "out", inputs / "001.png") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["d", "p.csv", "p.json", "p.jsonl"]


def test_a_list_in_a_file_is_like_one_on_standard_input(inputs: Path, tmp_path: Path) -> None:
    names = [inputs / "001.png", inputs / "002.png"]
    (tmp_path / "list.txt").write_text("".join(f"{name}\n" for name in names))
    listed = ["--checkpoint", "x.pth", "--list", tmp_path / "list.txt", "--json", tmp_path / "a.jsonl"]
    named = ["--checkpoint", "x.pth", *names, "--json", tmp_path / "b.jsonl"]
    assert run_tool("predict", list(map(str, listed))) == run_tool("predict", list(map(str, named))) == 0
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes() != b""


def test_two_processes_cannot_write_the_same_file(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.jsonl"
    with hold_lock_elsewhere(path.with_name("p.jsonl.lock")) as pid:
        for words in ([], ["--resume"], ["--shard", "0/2"]):
            argv = ["--checkpoint", "x.pth", str(inputs / "001.png"), "--json", str(path), *words]
            assert run_tool("predict", argv) == 2
            assert f"p.jsonl is being written by process {pid} " in capfd.readouterr().err
        assert not path.exists()
    assert run_resumable(path, inputs / "001.png") == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.jsonl", "p.jsonl.progress"]


def test_a_folder_that_is_not_ours_is_not_used_to_exchange_results(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "p.jsonl.parts"
    folder.mkdir()
    (folder / "0.jsonl").write_text("mine")
    argv = ["--checkpoint", "x.pth", str(inputs / "001.png"), "--json", str(tmp_path / "p.jsonl")]
    on_ranks(2, lambda: run_tool("predict", argv), allowed=(2,))
    assert capfd.readouterr().err.count("p.jsonl.parts is needed to exchange results") == 1
    for words in (["--resume"], []):  # a single process does not need the folder
        assert run_tool("predict", [*argv, *words]) == 0
    assert contents(folder) == {"0.jsonl": b"mine"}


def test_results_of_other_weights_that_a_killed_run_has_left_are_not_used(inputs: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    images = [inputs / f"{number:03d}.png" for number in range(1, 4)]
    folder = tmp_path / "p.jsonl.parts"
    folder.mkdir()
    (folder / EXCHANGE_MARKER).write_text("of a killed run")
    (folder / "0.jsonl").write_text("")
    argv = ["--checkpoint", "x.pth", *map(str, images), "--json", str(path), "--resume"]
    assert run_tool("predict", argv) == 0
    assert path.stat().st_size > 0 and not folder.exists()


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n\r\n").encode(),
        lambda text: text.replace("\n", "\r\n").encode("utf-16"),
        lambda text: text.replace("\n", "\0").encode(),
    ],
)
def test_lists_of_other_programs(inputs: Path, tmp_path: Path, encode: Callable[[str], bytes]) -> None:
    (tmp_path / "list.txt").write_bytes(encode(f"{inputs}/001.png\n{inputs}/002.png\n"))
    argv = ["--checkpoint", "x.pth", "--list", tmp_path / "list.txt", "--csv", tmp_path / "a.csv"]
    assert run_tool("predict", list(map(str, argv))) == 0
    assert (tmp_path / "a.csv").read_text().count("002.png") == 1


def test_a_run_without_readable_inputs_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    argv = ["--checkpoint", "x.pth", str(tmp_path / "bad.png"), "--json", str(tmp_path / "out" / "p.jsonl")]
    assert run_tool("predict", argv) == 2
    assert not list((tmp_path / "out").iterdir())


def test_a_full_disk_is_reported_with_the_name_of_the_file(
    inputs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    argv = ["--checkpoint", "x.pth", str(inputs), "--min-score", "0", "--json", str(tmp_path / "p.jsonl")]
    with full_disk(3000):
        assert run_tool("predict", argv) == 2
    assert "p.jsonl" in capfd.readouterr().err


def test_nproc_starts_processes_that_load_a_checkpoint(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_tool, "make_predictor", predictor_options.make_predictor)
    overrides = ["model.stacks=1", "model.width=16", "model.growth=2", "model.conv_std=0.3", "inference.height=64"]
    config = load_config(None, [*overrides, "inference.keypoint_threshold=0.01", "inference.part_threshold=0.0001"])
    torch.manual_seed(3)
    write_checkpoint(
        tmp_path / "net.pth", {"model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)}
    )
    listed = "".join(f"{inputs / f'{number:03d}.png'}\n" for number in range(1, 4)).encode()

    def run(name: str, *words: str) -> int:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(listed)))
        argv = ["--checkpoint", tmp_path / "net.pth", "-", "--threads", "1", "--json", tmp_path / name, *words]
        return run_tool("predict", list(map(str, argv)))

    num_threads = torch.get_num_threads()
    try:
        assert run("one.jsonl") == 0
    finally:
        torch.set_num_threads(num_threads)
    assert run("two.jsonl", "--nproc", "2") == 0
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes() != b""


def test_an_error_of_all_processes_is_reported_once(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predict_tool, "make_predictor", predictor_options.make_predictor)
    monkeypatch.setattr("posenet.devices.launch.launch", functools.partial(launch, start_method="fork"))
    argv = ["--checkpoint", "missing.pth", str(inputs), "--json", str(tmp_path / "p.jsonl"), "--nproc", "2"]
    with pytest.raises(SystemExit) as ended:
        run_tool("predict", argv)
    assert ended.value.code == 2
    error = capfd.readouterr().err
    assert error.count("error:") == 1 and "missing.pth" in error
