"""The benchmark of an accelerator, on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posenet.benchmark import gpu
from posenet.benchmark.gpu import (
    NOT_AVAILABLE,
    OUT_OF_MEMORY,
    PREDICTION_TITLE,
    RUN_TITLE,
    VARIANTS,
    Effort,
    StepTime,
)
from posenet.benchmark.report import Report
from posenet.cli.main import run_tool
from posenet.training.model_with_loss import ModelWithLoss
from tests.helpers.benchmark_runs import TINY_NETWORK, assert_positive

ON_CPU = ["gpu", "--device", "cpu", "--quick", "--input-size", "64", "--batch-sizes", "2", *TINY_NETWORK]
CUDA_ONLY = {"TF32", "+ cudnn.benchmark", "+ CUDA graphs"}


@pytest.fixture(autouse=True)
def compile_modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes in which networks should be compiled. They are not, because that would take minutes."""
    modes: list[str] = []
    monkeypatch.setattr(ModelWithLoss, "compile", lambda model, mode: modes.append(mode))
    return modes


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """The numbers and the Markdown tables of a run on the CPU."""
    json_path = folder / "gpu.json"
    markdown_path = folder / "gpu.md"
    files = ["--json", str(json_path), "--markdown", str(markdown_path)]
    assert run_tool("benchmark", [*ON_CPU, "data.workers=0", *arguments, *files]) == 0
    return json.loads(json_path.read_text()), markdown_path.read_text()


def fail_in_bf16(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Make training steps in bf16 raise an error."""
    time_steps = gpu._time_steps

    def fail(config: Any, runtime: Any, variant: Any, effort: Any) -> float:
        if variant.amp == "bf16":
            raise error
        return time_steps(config, runtime, variant, effort)

    monkeypatch.setattr(gpu, "_time_steps", fail)


def test_all_tables_are_measured(tmp_path: Path, compile_modes: list[str]) -> None:
    numbers, markdown = run(tmp_path)
    steps = {step["variant"]: step for step in numbers["steps"]}
    assert list(steps) == [variant.name for variant in VARIANTS]
    assert set(compile_modes) == {"default"}  # CUDA graphs are another mode
    assert {name for name, step in steps.items() if step["status"] == NOT_AVAILABLE} == CUDA_ONLY
    for name in steps.keys() - CUDA_ONLY:
        assert_positive(steps[name], "step_ms", "images_per_s", "share_of_peak")
    assert_positive(numbers, "checkpoint_stall_ms", "checkpoint_write_ms", "loader_images_per_s")
    assert_positive(numbers["train"], "stage_ms")
    assert_positive(numbers["predict"], "stream_pictures_per_s", "alone_ms")
    assert numbers["idle_share"] is None
    assert numbers["fastest"]["variant"] not in CUDA_ONLY
    rows = [line for line in markdown.splitlines() if line.startswith("| + compile")]
    assert len(rows) == 1 and rows[0].count("|") == 7
    assert markdown.count("### ") == 4


def test_a_batch_that_does_not_fit_into_memory_is_a_line_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in_bf16(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    numbers, markdown = run(tmp_path)
    assert numbers["fastest"]["variant"] == "float32"
    assert {step["status"] for step in numbers["steps"]} == {"measured", OUT_OF_MEMORY, NOT_AVAILABLE}
    assert f"| bf16 | 2 | {OUT_OF_MEMORY} |" in markdown


def test_an_error_is_a_row_with_its_first_line_and_all_else_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> Report:
        raise RuntimeError("broken pipeline")

    fail_in_bf16(monkeypatch, RuntimeError("misaligned | address\nCompile with TORCH_USE_CUDA_DSA"))
    monkeypatch.setattr(gpu, "measure_run", fail)
    monkeypatch.setattr("posenet.cli.benchmark.measure_predict", fail)
    numbers, markdown = run(tmp_path)
    assert numbers["complete"] is True and "INCOMPLETE" not in markdown
    steps = {step["variant"]: step["status"] for step in numbers["steps"]}
    assert (steps["float32"], steps["bf16"]) == ("measured", "failed: misaligned | address")
    assert "| bf16 | 2 | failed: misaligned \\| address |" in markdown
    assert_positive(numbers["train"], "stage_ms")
    assert numbers["predict"] == {PREDICTION_TITLE: "failed: broken pipeline"}
    assert markdown.count("failed: broken pipeline") == 2
    assert "Traceback" in capsys.readouterr().err  # the first line alone would not explain the error


def test_tables_that_need_more_memory_are_measured_with_the_next_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_step = gpu.measure_step
    failures = iter([torch.OutOfMemoryError("CUDA out of memory")])

    def fail_once(*arguments: Any) -> Report:
        for error in failures:
            raise error
        return measure_step(*arguments)

    def fail(*_: object) -> Report:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, "measure_step", fail_once)
    monkeypatch.setattr(gpu, "measure_run", fail)
    numbers, markdown = run(tmp_path)
    by_speed = sorted((step for step in numbers["steps"] if "step_ms" in step), key=lambda step: step["step_ms"])
    assert f"measured with the options of {by_speed[1]['variant']} at batch 2" in markdown
    assert numbers["train"]["step_ms"] > 0
    assert numbers[RUN_TITLE] == OUT_OF_MEMORY
    assert_positive(numbers["predict"], "alone_ms")


def test_an_interrupted_benchmark_keeps_what_it_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_in_bf16(monkeypatch, KeyboardInterrupt())
    json_path = tmp_path / "gpu.json"
    markdown_path = tmp_path / "gpu.md"
    files = ["--json", str(json_path), "--markdown", str(markdown_path)]
    assert run_tool("benchmark", [*ON_CPU, *files]) == 130
    numbers = json.loads(json_path.read_text())
    assert numbers["complete"] is False
    assert [step["variant"] for step in numbers["steps"]] == ["float32", "TF32"]
    for text in (markdown_path.read_text(), capsys.readouterr().out):
        assert "INCOMPLETE" in text and "float32" in text


def test_standard_output_receives_one_document(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_tool("benchmark", [*ON_CPU, "data.workers=0", "--json", "/dev/stdout"]) == 0
    assert json.loads(capfd.readouterr().out)["complete"] is True


@pytest.mark.parametrize(
    "compiled, expected", [(None, [4, 16]), ([8], [8]), ([8, 2], [8, 2])], ids=["smallest and fastest", "one", "two"]
)
def test_few_batch_sizes_are_compiled(compiled: list[int] | None, expected: list[int]) -> None:
    effort = Effort([4, 8, 16, 32], compiled, repeats=1, steps=1, matmul_side=8)
    eager = VARIANTS[0]
    seconds = {4: 1.0, 8: 1.9, 16: 3.0, 32: None}
    measured = [StepTime(eager, batch_size, seconds[batch_size]) for batch_size in effort.batch_sizes]
    assert gpu._batch_sizes(eager, effort, measured) == [4, 8, 16, 32]
    assert gpu._batch_sizes(VARIANTS[-1], effort, measured) == expected


def test_one_line_says_that_nothing_fits_into_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(gpu, "_time_steps", fail)
    assert run_tool("benchmark", ON_CPU) != 0
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert OUT_OF_MEMORY in error and "--batch-sizes" in error


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_without_an_accelerator_it_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool("benchmark", ["gpu"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.strip().splitlines()
    assert "no accelerator" in line and "--device cpu" in line
