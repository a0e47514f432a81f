"""Benchmarks: what they measure, print and write, and how they refuse bad input."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posenet.benchmark import timing
from posenet.benchmark.data import draw_batches, staged_batch
from posenet.benchmark.synthetic_input import drawn_images, drawn_store
from posenet.benchmark.machine import describe_machine
from posenet.benchmark.report import Report, table
from posenet.benchmark.targets import PEOPLE, standing_people
from posenet.benchmark.timing import Stopwatch, fastest, medians
from posenet.benchmark.train import synthetic_batch
from posenet.cli.main import run_tool
from posenet.data.batch import Pixels
from posenet.data.dataset import PoseDataset
from posenet.data.store.reader import Store
from posenet.settings import AugmentConfig
from posenet.skeleton import COCO

TINY = ["--set", "model.stacks=1", "model.width=16", "model.growth=2"]


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder of a few drawn images, and their annotations."""
    return drawn_images(tmp_path_factory.mktemp("coco"), 3)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_store(tmp_path_factory.mktemp("store"), 3)


def benchmark(tmp_path: Path, *words: str | Path) -> dict[str, Any]:
    """Run one benchmark, quickly, and return what it wrote."""
    path = tmp_path / "out.json"
    assert run_tool("benchmark", [*map(str, words), "--quick", "--json", str(path)]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    numbers = json.loads(path.read_text())
    assert numbers["benchmark"] == words[0]
    return numbers


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def assert_positive(numbers: dict[str, Any], *keys: str) -> None:
    for key in keys:
        values = list(leaves(numbers[key]))
        assert values and all(math.isfinite(value) and value > 0 for value in values), key


def test_data(tmp_path: Path, store: Path) -> None:
    numbers = benchmark(tmp_path, "data", "--h5", store, "--input-size", "128", "--batch-size", "2", "--workers", "1")
    assert_positive(
        numbers,
        "samples_per_s",
        "bound_samples_per_s",
        "share_of_bound",
        "stage_ms",
        "loader_samples_per_s",
        "receive_ms_per_batch",
        "copied_bytes_per_s",
        "decode_samples_per_s",
        "warp_samples_per_s",
        "plain_samples_per_s",
        "cpu_samples_per_s",
    )
    assert list(numbers["stage_ms"]) == ["read", "masks", "joints", "decode", "colour", "warp", "collate", "transfer"]
    # Images and two masks as bytes, then joints and the id: no rendered maps.
    pixels = 3 * 128 * 128 + 2 * 32 * 32
    assert pixels < numbers["bytes_per_sample"] < 1.2 * pixels
    assert numbers["input_size"] == [128, 128] and numbers["samples"] == 4


def test_data_without_a_store_draws_one(tmp_path: Path) -> None:
    numbers = benchmark(tmp_path, "data", "--input-size", "64")
    assert_positive(numbers, "samples_per_s", "bound_samples_per_s", "bytes_per_sample")
    assert "loader_samples_per_s" not in numbers


def test_targets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = benchmark(tmp_path, "targets")
    assert_positive(numbers, "samples_per_s", "ms_per_sample", "limit_ms_per_sample")
    assert list(numbers["samples_per_s"]) == [str(people) for people in PEOPLE]
    assert numbers["published_ms_per_sample"] == {"3": 4.3, "10": 11.3, "20": 22.8}
    printed = capsys.readouterr().out
    assert "512 x 512" in printed and "11.3" in printed and torch.__version__ in printed


def test_network(tmp_path: Path) -> None:
    numbers = benchmark(tmp_path, "network", "--input-size", "128", *TINY)
    assert_positive(
        numbers,
        "heatmaps_ms",
        "forward_ms",
        "heatmaps_gflop_per_s",
        "forward_gflop_per_s",
        "matmul_gflop_per_s",
        "parameters",
    )
    assert 0 < numbers["heatmaps_gflop"] < numbers["forward_gflop"]


def test_train(tmp_path: Path) -> None:
    numbers = benchmark(tmp_path, "train", "--input-size", "64", "--batch-size", "2", *TINY)
    assert_positive(
        numbers,
        "samples_per_s",
        "step_ms",
        "forward_ms",
        "backward_ms",
        "update_ms",
        "step_gflop",
        "stage_ms",
        "matmul_gflop_per_s",
    )
    assert list(numbers["stage_ms"]) == ["targets", "network", "loss", "backward", "update"]
    assert numbers["batch_size"] == 2


def test_train_tells_how_long_steps_wait_for_data(tmp_path: Path, store: Path) -> None:
    numbers = benchmark(
        tmp_path,
        "train",
        "--h5",
        store,
        "--input-size",
        "64",
        "--batch-size",
        "2",
        "--set",
        "data.workers=0",
        *TINY[1:],
    )
    assert_positive(numbers, "data_wait", "fed_step_ms", "first_wait_ms", "fed_steps")
    assert numbers["data_wait"] < 1


def test_train_in_processes(tmp_path: Path) -> None:
    numbers = benchmark(
        tmp_path, "train", "--processes", "2", "--input-size", "64", "--batch-size", "2", *TINY, "optim.name=adamw"
    )
    assert_positive(numbers, "samples_per_s", "step_ms", "scaling_efficiency", "scaling_bound")
    # The guard's vote and the gradient's norm; metrics are made of what the vote has read.
    assert numbers["host_reads_per_step"] == 2 and numbers["distributed_overhead"] > -1
    assert list(numbers["samples_per_s"]) == ["plain", "distributed", "strangers", "together"]


def test_decode_reads_perfect_maps_well(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    numbers = benchmark(tmp_path, "decode", "--annotations", coco[1], "--height", "256")
    assert_positive(numbers, "images_per_s", "ms_per_image", "speed_up")
    assert numbers["ap"] > 0.5 and numbers["images"] == 3 and numbers["height"] == 256


def test_decode_of_degraded_maps(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    words = ["decode", "--annotations", coco[1], "--height", "256"]
    perfect = benchmark(tmp_path, *words)
    degraded = benchmark(tmp_path, *words, "--degrade", "--seed", "3")
    assert degraded["ap"] < perfect["ap"] <= perfect["bound_ap"] + 1e-6
    assert degraded["errors"]["missed"] >= perfect["errors"]["missed"]
    again = benchmark(tmp_path, *words, "--degrade", "--seed", "3")
    assert again["errors"] == degraded["errors"] and again["ap"] == degraded["ap"]


def test_decode_without_annotations_draws_some(tmp_path: Path) -> None:
    assert benchmark(tmp_path, "decode", "--height", "128", "--limit", "1")["images"] == 1


def test_decode_on_real_annotations(tmp_path: Path, coco_sample: Path) -> None:
    path = coco_sample / "annotations" / "person_keypoints_val2017_oracle150.json"
    assert benchmark(tmp_path, "decode", "--annotations", path)["ap"] > 0.94


def test_predict(tmp_path: Path, coco: tuple[Path, Path]) -> None:
    numbers = benchmark(tmp_path, "predict", coco[0], "--height", "64", "--amp", "off", "--compare", *TINY)
    assert_positive(
        numbers,
        "stage_ms",
        "whole_ms",
        "network_ms",
        "pictures_per_s",
        "whole_over_network",
        "stream_ms",
        "alone_ms",
        "trained_ms",
        "stream_over_alone",
    )
    assert numbers["amp"] == "off"
    assert list(numbers["stage_ms"]) == ["read", "prepare", "network", "decode", "draw"]
    assert numbers["pictures"] == 3


def test_predict_with_a_checkpoint(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    from posenet.model.posenet import PoseNet
    from posenet.settings import config_to_dict, load_config

    config = load_config(None, TINY[1:] + ["inference.height=64"])
    path = tmp_path_factory.mktemp("run") / "last.pth"
    torch.save({"model": PoseNet.from_config(config).state_dict(), "config": config_to_dict(config)}, path)
    assert_positive(benchmark(tmp_path, "predict", "--checkpoint", path), "whole_ms")


@pytest.mark.parametrize(
    "words",
    [["everything"], [], ["targets", "--repeats", "0"], ["targets", "--threads", "none"], ["data", "--workers", "-1"]],
)
def test_wrong_flags_are_refused_by_the_parser(words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run_tool("benchmark", words)
    assert exit_.value.code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "--h5", "missing.h5"], "missing.h5"),
        (["store", "--h5", "missing.h5"], "missing.h5"),
        (["store", "--images", "."], "both"),
        (["store", "--images", ".", "--annotations", "missing.json"], "missing.json"),
        (["decode", "--annotations", "missing.json"], "missing.json"),
        (["predict", "missing.jpg", *TINY], "missing.jpg"),
        (["predict", "--checkpoint", "missing.pth"], "missing.pth"),
        (["targets", "--input-size", "100"], "multiples of 64"),
        (["network", "--input-size", "64", *TINY], "BatchNorm"),
        (["network", "--set", "model.depth=3"], "model.depth"),
        (["train", "--device", "abacus"], "abacus"),
        (["targets", "--json", "missing/out.json"], "missing"),
        (["targets", "--json", "."], "folder"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_tool("benchmark", [*words, "--quick"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert "error: " in error and message in error


def test_an_input_is_never_overwritten(coco: tuple[Path, Path]) -> None:
    before = coco[1].read_bytes()
    assert run_tool("benchmark", ["decode", "--annotations", str(coco[1]), "--json", str(coco[1])]) == 2
    assert coco[1].read_bytes() == before


def test_a_staged_batch_is_the_dataset_s_own(store: Path) -> None:
    with Store(store) as reader:
        dataset = PoseDataset(reader, (128, 192), "person", AugmentConfig(jitter_probability=0.5), seed=3)
        watch = Stopwatch()
        watch.start_round()
        for keys in draw_batches(dataset, 6, 3):
            staged = staged_batch(dataset, keys, Pixels.make(3, 128, 192), watch)
            for ours, own in zip(staged, dataset.__getitems__(keys), strict=True):
                np.testing.assert_array_equal(ours, own)


def test_batches_come_in_training_s_order(store: Path) -> None:
    with Store(store) as reader:
        dataset = PoseDataset(reader, (64, 64))
        batches = draw_batches(dataset, 2 * len(dataset) + 1, 2)
    assert all(len(batch) == 2 for batch in batches)
    assert len(batches) * 2 >= 2 * len(dataset) + 1
    assert len({epoch for batch in batches for epoch, _ in batch}) > 1


def test_standing_people_stand() -> None:
    people = standing_people(np.random.default_rng(0), 20, (512, 512))
    assert people.shape == (20, COCO.num_keypoints, 3) and people.dtype == np.float32
    assert (people[..., 2] == 2).all()
    heights = people[:, COCO.index("Rank"), 1] - people[:, COCO.index("nose"), 1]
    assert (heights > 20).all() and (heights < 450).all()
    assert people[:, COCO.index("Lsho"), 0].mean() > people[:, COCO.index("Rsho"), 0].mean()


def test_synthetic_batch_fits_the_training_step() -> None:
    batch = synthetic_batch(2, (64, 128))
    assert batch.images.shape == (2, 64, 128, 3) and batch.images.dtype == torch.uint8
    assert batch.person_mask.shape == batch.mask_miss.shape == (2, 16, 32)


def test_tasks_take_turns_and_the_first_turn_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, calls = [0.0], []
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])

    def task(name: str, seconds: list[float]) -> None:
        calls.append(name)
        now[0] += seconds.pop(0)

    slow, fast = [9.0, 4.0, 2.0, 3.0], [9.0, 1.0, 1.0, 1.0]
    found = medians({"slow": lambda: task("slow", slow), "fast": lambda: task("fast", fast)}, 3)
    assert found == {"slow": 3.0, "fast": 1.0}
    assert calls == ["slow", "fast"] * 4
    assert fastest(lambda: task("limit", [0.5]), 3) == 0.5


def test_stopwatch_adds_up_a_stage_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    watch = Stopwatch()
    for seconds in (1.0, 2.0, 5.0):
        watch.start_round()
        for stage in ("read", "decode", "read"):
            now[0] += seconds
            watch.lap(stage)
        now[0] += 100
        watch.skip()
    assert watch.medians() == {"read": 4.0, "decode": 2.0} and watch.total() == 6.0


def test_table_lines_up() -> None:
    lines = table(("stage", "ms"), [("a long name", 1234.5), ("b", 0.01234), ("c", None)]).splitlines()
    assert lines == ["stage           ms", "-----------  -----", "a long name   1234", "b            0.012", "c"]
    text = Report("title", ("stage", "ms"), [("a", 1.0)], {}, ["note"]).text()
    assert text.splitlines()[0] == "title" and text.splitlines()[-1] == "note"


def test_machine_is_told_in_words() -> None:
    words = in_words(describe(torch.device("cpu")))
    assert "usable cores, threads used: 1" in words and "device cpu" in words and torch.__version__ in words
