"""The curves of a run from its log, with and without matplotlib."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from posenet.errors import ConfigError, DataError
from posenet.images import read_image
from posenet.visualization import curves
from posenet.visualization.curves import (
    LOG_FILE,
    MAX_POINTS,
    has_matplotlib,
    read_log,
    training_figure,
    write_curves,
)
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


def full_run() -> list[dict[str, Any]]:
    lines = [train_entry(step, epoch=(step - 1) // 500, loss=100 / step) for step in range(10, 1501, 10)]
    scores = [epoch_entry(500 * e, e, AP=0.1 * e, AR=0.2 * e, AP50=0.3, AP75=0.1) for e in (1, 2, 3)]
    return [*lines, *scores, {"kind": "skip", "step": 700, "value": "inf", "image_ids": [1]}]


def panels(folder: Path) -> dict[str, Any]:
    """The axes of a run's figure by title."""
    return {axes.get_title(loc="left"): axes for axes in training_figure(read_log(folder / LOG_FILE), "my run").axes}


def test_the_curves_of_a_whole_run_are_drawn_without_pyplot(run: Run) -> None:
    before = "matplotlib.pyplot" in sys.modules
    path = write_curves(run(*full_run()))
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert path.name == "curves.png"
    image = read_image(path)
    assert image.shape[0] > 700 and image.shape[1] > 1000 and image.std() > 10


def test_every_series_of_the_log_has_a_curve(run: Run) -> None:
    axes = panels(run(*full_run()))
    loss, scores = list(axes.values())[:2]
    labels = [[line.get_label() for line in panel.get_lines()] for panel in (loss, scores)]
    assert labels[0] == ["training, between log lines", "training, mean of the epoch", "validation", "skipped steps"]
    assert labels[1] == ["AP", "AP50", "AP75", "AR"]
    np.testing.assert_allclose(loss.get_lines()[0].get_ydata(), 1.5)
    np.testing.assert_allclose(scores.get_lines()[0].get_xdata(), [1, 2, 3])
    assert "epoch 3, step 1500, best AP 0.300 after epoch 3" in loss.figure.get_suptitle()


def test_what_the_log_does_not_have_has_no_panel(run: Run) -> None:
    """An empty panel says nothing. Second y axes have the title ""."""
    entries = [train_entry(10), train_entry(20), epoch_entry(20, 1)]
    assert list(panels(run(*entries, name="a"))) == ["Loss", "Learning rate and gradient norm", "", "Speed"]
    short = train_entry(1)
    del short["terms"], short["data_wait"], short["gradient_norm"]
    for number, lines in enumerate(
        (
            [short],
            [epoch_entry(5, 1, val_loss=None, train_loss=None)],
            [train_entry(1, loss=None, terms=None, gradient_norm=None)],
            [epoch_entry(5, 1), train_entry(9, terms=None, gradient_norm=None)],
        )
    ):
        titles = list(panels(run(*lines, name=str(number))))
        assert titles == ["Loss", "Learning rate", "Speed", ""]


def test_the_gradient_norm_has_an_axis_of_its_own_beside_the_learning_rate(run: Run) -> None:
    norms = [3.0, 500.0, None, 40.0]
    lines = [train_entry(10 * number, gradient_norm=norm) for number, norm in enumerate(norms, 1)]
    figure = panels(run(*lines))["Learning rate and gradient norm"].figure
    rate, norm = figure.axes[-4:-2]
    assert [text.get_text() for text in rate.get_legend().get_texts()] == ["learning rate", "gradient norm (right)"]
    np.testing.assert_allclose(norm.get_lines()[0].get_xydata(), [[10, 3], [20, 500], [40, 40]])
    assert norm.get_yscale() == "log" and rate.get_yscale() == "linear"
    figure.canvas.draw()
    legend = rate.get_legend().get_window_extent()
    for axes in (rate, norm):
        assert axes.transData.transform(axes.get_lines()[0].get_xydata())[:, 1].max() < legend.y0


def test_the_memory_of_an_accelerator_is_drawn_beside_the_wait_for_data(run: Run) -> None:
    lines = [train_entry(10, memory_share=0.25), train_entry(20), train_entry(30, memory_share=0.5)]
    figure = panels(run(*lines))["Speed"].figure
    curves = {line.get_label(): line for line in figure.axes[-1].get_lines()}
    assert list(curves) == ["wait for data (right, %)", "memory (right, %)"]
    np.testing.assert_allclose(curves["memory (right, %)"].get_xydata(), [[10, 25], [30, 50]])
    assert "memory (right, %)" in [text.get_text() for text in figure.axes[-2].get_legend().get_texts()]


def test_the_legends_do_not_cover_the_speed_and_the_loss(run: Run) -> None:
    losses = [train_entry(step, terms=[[50 - step / 2]]) for step in range(10, 41, 10)]
    loss = panels(run(*losses, name="losses"))["Loss"]
    assert loss.get_ylim()[1] > max(loss.get_lines()[0].get_ydata()) + 2
    lines = [train_entry(step, samples_per_s=9.0 + step % 3, data_wait=0.99) for step in range(10, 200, 10)]
    speed = panels(run(*lines))["Speed"]
    figure = speed.figure
    figure.canvas.draw()
    legend = speed.get_legend().get_window_extent()
    for axes in figure.axes[-2:]:
        for line in axes.get_lines():
            assert axes.transData.transform(line.get_xydata())[:, 1].max() < legend.y0


def test_a_loss_that_falls_far_has_a_logarithmic_axis_with_plain_numbers(run: Run) -> None:
    lines = [train_entry(step, terms=[[loss]]) for step, loss in ((10, 300.0), (20, 30.0), (30, 2e6))]
    axes = panels(run(*lines))["Loss"]
    assert axes.get_yscale() == "log" and axes.get_ylim()[1] > 1e7
    assert axes.yaxis.get_major_formatter()(100.0) == "100"
    axes.figure.canvas.draw()
    assert axes.yaxis.get_tightbbox().x0 >= 0, "the numbers are inside the figure"


def test_the_losses_of_the_first_epoch_do_not_hide_those_that_follow(run: Run) -> None:
    terms = [60.0, 12.0, 8.0, 7.0, 6.5, 6.0]
    lines = [train_entry(10 * number, terms=[[value]]) for number, value in enumerate(terms, 1)]
    epochs = [epoch_entry(20 * number, number, train_loss=36 / number, val_loss=9 - number) for number in (1, 2, 3)]
    first, *_ = panels(run(*lines, *epochs[:1], name="one epoch"))["Loss"].get_ylim()[::-1]
    assert first > 60
    low, high = panels(run(*lines, *epochs, name="three epochs"))["Loss"].get_ylim()
    assert 5 < low < 6 and 18 < high < 30


def test_terms_that_are_not_finite_leave_a_gap(run: Run) -> None:
    lines = [train_entry(step, terms=[[None if step == 20 else 3.0]]) for step in (10, 20, 30)]
    assert np.isnan(panels(run(*lines))["Loss"].get_lines()[0].get_ydata()).tolist() == [False, True, False]


def test_a_log_of_a_resumed_run_is_read(run: Run) -> None:
    """Entries after the last epoch continue at its pace, repeated steps count once, incomplete lines are skipped."""
    history = read_log(run(train_entry(5), epoch_entry(10, 1), train_entry(15)) / LOG_FILE)
    np.testing.assert_allclose(history.positions(history.train), [0.5, 1.5])
    assert read_log(run(train_entry(5), name="young") / LOG_FILE).positions([train_entry(5)]) == [5]
    lines = [train_entry(5), train_entry(10), train_entry(15), epoch_entry(15, 1), "null", "[]", '{"kind": "tr']
    lines += [train_entry(10, loss=7.0), {"kind": "other", "step": 3}]
    history = read_log(run(*lines, name="resumed") / LOG_FILE)
    assert [(line["step"], line["loss"]) for line in history.train] == [(5, 2.0), (10, 7.0)]


@pytest.mark.parametrize(
    "entry",
    [{"kind": "train"}, train_entry(20) | {"step": "20"}, train_entry(20, lr="x"), train_entry(20, terms=[["x"]])],
    ids=["no step", "text", "rate", "terms"],
)
def test_entries_that_no_run_writes_are_one_line(run: Run, entry: dict[str, Any]) -> None:
    folder = run(train_entry(10), entry, train_entry(30))
    with pytest.raises(DataError, match=r"log.jsonl has values that no run writes \(.*\); give the log of a run$"):
        write_curves(folder)


def test_curves_of_long_runs_have_fewer_points(run: Run) -> None:
    axes = panels(run(*(train_entry(step) for step in range(1, 3 * MAX_POINTS))))
    assert len(axes["Learning rate and gradient norm"].get_lines()[0].get_xdata()) == MAX_POINTS


def test_curves_are_written_to_other_files_and_bad_input_is_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curves, "training_figure", lambda history, name: Figure())  # drawn in a moment
    folder = run(train_entry(1))
    write_curves(folder, tmp_path / "new" / "c.svg")
    assert "<svg" in (tmp_path / "new" / "c.svg").read_text()
    for path, message in ((tmp_path, "give the folder of a run"), (run(name="empty"), "nothing to draw yet")):
        with pytest.raises(DataError, match=message):
            write_curves(path)
    for name in ("c.docx", "c"):
        with pytest.raises(ConfigError, match="choose .png"):
            write_curves(folder, tmp_path / name)
    with pytest.raises(DataError, match=LOG_FILE):
        read_log(tmp_path / LOG_FILE)


def test_a_missing_matplotlib_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not has_matplotlib()
    with pytest.raises(ConfigError, match=r"pip install 'simplepose\[plot\]'"):
        write_curves(run(train_entry(1)))
