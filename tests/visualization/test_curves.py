"""The curves of a run from its log."""

import json
from pathlib import Path
from typing import Any

import pytest

from posenet.errors import DataError
from posenet.images import read_image
from posenet.visualization.curves import LOG_FILE, read_log, training_figure, write_curves


def entry(kind: str, step: int, **values: Any) -> str:
    return json.dumps({"kind": kind, "step": step, **values})


def write_log(folder: Path, *lines: str) -> Path:
    (folder / LOG_FILE).write_text("\n".join(lines))
    return folder


def test_every_series_of_the_log_has_a_curve(tmp_path: Path) -> None:
    lines = [
        entry("train", 10, loss=9, lr=0.2, gradient_norm=7),
        entry("train", 20, loss=6, lr=0.1, gradient_norm=None),
        entry("epoch", 20, train_loss=5, val_loss=8, AP=0.4, AP50=0.7, AP75=0.3, AR=0.5),
        entry("skip", 25, value="inf", image_ids=[1]),
        entry("epoch", 40, train_loss=4, val_loss=7, AP=0.3, AP50=0.8, AP75=0.2, AR=0.6),
    ]
    path = write_curves(write_log(tmp_path, *lines))
    assert path == tmp_path / "curves.png" and read_image(path).std() > 10
    figure = training_figure(read_log(tmp_path / LOG_FILE), "my run")
    curves = {str(line.get_label()): line.get_xydata().tolist() for panel in figure.axes for line in panel.get_lines()}
    [skipped] = [curves.pop(label) for label in list(curves) if label.startswith("_")]
    assert skipped == [[25, 0], [25, 1]]
    assert curves == {
        "training, mean of the epoch so far": [[10, 9], [20, 6]],
        "training, mean of the epoch": [[20, 5], [40, 4]],
        "validation": [[20, 8], [40, 7]],
        "AP": [[20, 0.4], [40, 0.3]],
        "AP50": [[20, 0.7], [40, 0.8]],
        "AP75": [[20, 0.3], [40, 0.2]],
        "AR": [[20, 0.5], [40, 0.6]],
        "learning rate": [[10, 0.2], [20, 0.1]],
        "gradient norm": [[10, 7]],
    }


def test_a_log_of_a_resumed_run_is_read(tmp_path: Path) -> None:
    """Repeated steps count once, incomplete lines are skipped."""
    lines = [entry("train", 5), entry("train", 10), entry("train", 15), "null", "[]", '{"kind": "tr']
    lines += [entry("train", 10, loss=7.0), entry("other", 3)]
    log = read_log(write_log(tmp_path, *lines) / LOG_FILE)
    assert [(line["step"], line.get("loss")) for line in log["train"]] == [(5, None), (10, 7.0)]
    with pytest.raises(DataError, match="nothing to draw yet"):
        write_curves(write_log(tmp_path))
