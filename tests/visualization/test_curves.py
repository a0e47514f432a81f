"""The curves of a run from its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posenet.errors import DataError
from posenet.images import read_image
from posenet.visualization.curves import LOG_FILE, read_log, training_figure, write_curves

Run = Callable[..., Path]


def train_entry(step: int, epoch: int = 0, loss: float | None = 2.0, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "time": 0.0,
        "epoch": epoch,
        "loss": loss,
        "lr": 1e-3,
        "samples_per_s": 9.0,
        "data_wait": 0.1,
        "gradient_norm": 5.0,
    } | changes


def epoch_entry(step: int, epoch: int, **changes: Any) -> dict[str, Any]:
    return {"kind": "epoch", "step": step, "epoch": epoch, "train_loss": 3.0, "val_loss": 2.5} | changes


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def write(*lines: object, name: str = "my run") -> Path:
        (tmp_path / name).mkdir()
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name / LOG_FILE).write_text(text)
        return tmp_path / name

    return write


def panels(folder: Path) -> dict[str, Any]:
    """The axes of a run's figure by title."""
    return {axes.get_title(loc="left"): axes for axes in training_figure(read_log(folder / LOG_FILE), "my run").axes}


def test_every_series_of_the_log_has_a_curve_drawn_without_pyplot(run: Run) -> None:
    lines = [
        train_entry(10, loss=9, lr=0.2, gradient_norm=7),
        train_entry(20, loss=6, lr=0.1, gradient_norm=None),
        epoch_entry(20, 1, train_loss=5, val_loss=8, AP=0.4, AP50=0.7, AP75=0.3, AR=0.5),
        {"kind": "skip", "step": 25, "value": "inf", "image_ids": [1]},
        epoch_entry(40, 2, train_loss=4, val_loss=7, AP=0.3, AP50=0.8, AP75=0.2, AR=0.6),
    ]
    folder = run(*lines)
    before = "matplotlib.pyplot" in sys.modules
    path = write_curves(folder)
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert path == folder / "curves.png" and read_image(path).std() > 10
    axes = panels(folder)
    assert axes["Loss"].figure.get_suptitle() == "my run"
    found = {
        title: {str(line.get_label()): line.get_xydata().tolist() for line in panel.get_lines()}
        for title, panel in axes.items()
    }
    [skipped] = [found["Loss"].pop(label) for label in list(found["Loss"]) if label.startswith("_")]
    assert skipped == [[25, 0], [25, 1]]
    assert found == {
        "Loss": {
            "training, mean of the epoch so far": [[10, 9], [20, 6]],
            "training, mean of the epoch": [[20, 5], [40, 4]],
            "validation": [[20, 8], [40, 7]],
        },
        "COCO scores on the validation images": {
            "AP": [[20, 0.4], [40, 0.3]],
            "AP50": [[20, 0.7], [40, 0.8]],
            "AP75": [[20, 0.3], [40, 0.2]],
            "AR": [[20, 0.5], [40, 0.6]],
        },
        "Learning rate": {"learning rate": [[10, 0.2], [20, 0.1]]},
        "Gradient norm": {"gradient norm": [[10, 7]]},
    }


def test_a_log_of_a_resumed_run_is_read(run: Run) -> None:
    """Repeated steps count once, incomplete lines are skipped."""
    lines = [train_entry(5), train_entry(10), train_entry(15), "null", "[]", '{"kind": "tr']
    lines += [train_entry(10, loss=7.0), {"kind": "other", "step": 3}]
    log = read_log(run(*lines, name="resumed") / LOG_FILE)
    assert [(line["step"], line["loss"]) for line in log["train"]] == [(5, 2.0), (10, 7.0)]
    with pytest.raises(DataError, match="nothing to draw yet"):
        write_curves(run(name="empty"))
