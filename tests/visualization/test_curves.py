"""The curves of a run from its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import read_image
from posenet.visualization.curves import LOG_FILE, MAX_POINTS, read_log, training_figure, write_curves
from tests.helpers.run_logs import epoch_entry, train_entry

Run = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def write(*lines: object, name: str = "my run") -> Path:
        (tmp_path / name).mkdir()
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name / LOG_FILE).write_text(text)
        return tmp_path / name

    return write


def figure_of(folder: Path) -> Any:
    return training_figure(read_log(folder / LOG_FILE), "my run")


def panels(folder: Path) -> dict[str, Any]:
    """The axes of a run's figure by title; second y axes have the title ""."""
    return {axes.get_title(loc="left"): axes for axes in figure_of(folder).axes}


def test_every_series_of_the_log_has_a_curve_drawn_without_pyplot(run: Run) -> None:
    lines = [
        train_entry(10, loss=9, terms=[[1, 2], [1, 2]], lr=0.2, samples_per_s=8, gradient_norm=7, memory_share=0.25),
        train_entry(20, loss=6, terms=None, lr=0.1, samples_per_s=9, gradient_norm=None, data_wait=0.75),
        epoch_entry(20, 1, train_loss=5, val_loss=8, AP=0.4, AP50=0.7, AP75=0.3, AR=0.5),
        {"kind": "skip", "step": 25, "value": "inf", "image_ids": [1]},
        epoch_entry(40, 2, train_loss=4, val_loss=7, AP=0.3, AP50=0.8, AP75=0.2, AR=0.6),
    ]
    folder = run(*lines)
    before = "matplotlib.pyplot" in sys.modules
    path = write_curves(folder)
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert path == folder / "curves.png" and read_image(path).std() > 10
    figure = training_figure(read_log(folder / LOG_FILE), "my run")
    assert figure.get_suptitle() == "my run: epoch 2, step 40, best AP 0.400 after epoch 1"
    found: dict[str, dict[str, list[list[float]]]] = {}
    title = ""
    for axes in figure.axes:  # the second axes of a panel follow the first and have no title
        title = axes.get_title(loc="left") or title + ", right"
        found[title] = {str(line.get_label()): line.get_xydata().tolist() for line in axes.get_lines()}
        assert axes.get_xlim() == (0, 2.04) and axes.get_xlabel() == ("" if "right" in title else "epoch")
    assert found == {
        "Loss": {
            "training, between log lines": [[0.5, 6], [1, 6]],
            "training, mean of the epoch": [[1, 5], [2, 4]],
            "validation": [[1, 8], [2, 7]],
            "skipped steps": [[1.25, 0.02]],
        },
        "COCO scores on the validation images": {
            "AP": [[1, 0.4], [2, 0.3]],
            "AP50": [[1, 0.7], [2, 0.8]],
            "AP75": [[1, 0.3], [2, 0.2]],
            "AR": [[1, 0.5], [2, 0.6]],
        },
        "Learning rate and gradient norm": {"learning rate": [[0.5, 0.2], [1, 0.1]]},
        "Learning rate and gradient norm, right": {"gradient norm (right)": [[0.5, 7]]},
        "Speed": {"samples/s": [[0.5, 8], [1, 9]]},
        "Speed, right": {"wait for data (right, %)": [[0.5, 10], [1, 75]], "memory (right, %)": [[0.5, 25]]},
    }


def test_the_scores_have_a_panel_where_the_log_has_them(run: Run) -> None:
    titles = ["Loss", "Learning rate and gradient norm", "", "Speed", ""]
    for number, entries in enumerate(([train_entry(10), epoch_entry(20, 1)], [train_entry(1, loss=None, terms=None)])):
        assert [axes.get_title(loc="left") for axes in figure_of(run(*entries, name=str(number))).axes] == titles


def test_legends_name_the_curves_of_both_axes(run: Run) -> None:
    lines = [train_entry(10 * number, gradient_norm=norm) for number, norm in enumerate((3.0, 500.0, 40.0), 1)]
    rate, norm, speed, _ = panels(run(*lines))["Speed"].figure.axes[-4:]
    assert norm.get_yscale() == "log" and rate.get_yscale() == "linear"
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in (rate, speed)]
    assert legends == [["learning rate", "gradient norm (right)"], ["samples/s", "wait for data (right, %)"]]


def test_a_loss_that_falls_far_has_a_logarithmic_axis_with_plain_numbers(run: Run) -> None:
    lines = [train_entry(step, terms=[[loss]]) for step, loss in ((10, 300.0), (20, 30.0), (30, 2e6))]
    axes = panels(run(*lines))["Loss"]
    assert axes.get_yscale() == "log" and axes.yaxis.get_major_formatter()(100.0) == "100"
    lines[1]["terms"] = [[0.0]]
    assert panels(run(*lines, name="zero"))["Loss"].get_yscale() == "linear", "which shows the 0, too"


def test_long_runs_have_fewer_points_and_values_that_are_not_finite_leave_a_gap(run: Run) -> None:
    axes = panels(run(*(train_entry(step) for step in range(1, 3 * MAX_POINTS)), name="long"))
    assert len(axes["Learning rate and gradient norm"].get_lines()[0].get_xdata()) == MAX_POINTS
    lines = [train_entry(step, terms=[[None if step == 20 else 3.0]]) for step in (10, 20, 30)]
    assert np.isnan(panels(run(*lines))["Loss"].get_lines()[0].get_ydata()).tolist() == [False, True, False]


def test_a_log_of_a_resumed_run_is_read(run: Run) -> None:
    """Entries after the last epoch continue at its pace, repeated steps count once, incomplete lines are skipped."""
    log = read_log(run(train_entry(5), epoch_entry(10, 1), train_entry(15)) / LOG_FILE)
    assert [entry["x"] for entry in log["train"]] == [0.5, 1.5]
    lines = [train_entry(5), train_entry(10), train_entry(15), "null", "[]", '{"kind": "tr']
    lines += [train_entry(10, loss=7.0), {"kind": "other", "step": 3}]
    log = read_log(run(*lines, name="resumed") / LOG_FILE)
    assert [(line["x"], line["loss"]) for line in log["train"]] == [(5, 2.0), (10, 7.0)], "steps before the first epoch"
    with pytest.raises(DataError, match="nothing to draw yet"):
        write_curves(run(name="empty"))
