"""The curves of a run from its log, and what happens without matplotlib."""

import json
import sys

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.errors import ConfigError, DataError
from posenet.images.image_files import read_image
from posenet.visualization import matplotlib_figure as figure
from posenet.visualization.training_curves import LOG, POINTS, draw_curves, read_log, training_figure


def train_line(step, epoch=0, loss=2.0, **more):
    return {
        "kind": "train",
        "step": step,
        "time": 0.0,
        "epoch": epoch,
        "loss": loss,
        "lr": 1e-3,
        "samples_per_s": 9.0,
        "data_wait": 0.1,
        "terms": [[0.1] * 5, [0.2] * 5],
    } | more


def epoch_line(step, epoch, **more):
    return {"kind": "epoch", "step": step, "epoch": epoch, "train_loss": 3.0, "val_loss": 2.5} | more


@pytest.fixture
def run(tmp_path):
    def write(*lines, name="my run"):
        (tmp_path / name).mkdir()
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name / LOG).write_text(text)
        return tmp_path / name

    return write


def full_run():
    lines = [train_line(step, epoch=(step - 1) // 500, loss=100 / step) for step in range(10, 1501, 10)]
    return (
        lines
        + [epoch_line(500 * e, e, AP=0.1 * e, AR=0.2 * e, AP50=0.3, AP75=0.1) for e in (1, 2, 3)]
        + [{"kind": "skip", "step": 700, "value": "inf", "image_ids": [1]}]
    )


def test_a_picture_of_a_whole_run_without_pyplot(run):
    before = "matplotlib.pyplot" in sys.modules
    path = draw_curves(run(*full_run()))
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert path.name == "curves.png"
    image = read_image(path)
    assert image.shape[0] > 700 and image.shape[1] > 1400 and image.std() > 10


def test_every_series_of_the_log_is_there(run):
    panels = training_figure(read_log(run(*full_run()) / LOG), "my run").axes
    labels = [[line.get_label() for line in panel.get_lines()] for panel in panels]
    assert labels[0] == ["training, between log lines", "training, mean of the epoch", "validation", "skipped steps"]
    assert labels[1] == [f"stride {s}" for s in (4, 8, 16, 32, 64)] and labels[2] == ["stack 1", "stack 2"]
    assert labels[3] == ["AP", "AP50", "AP75", "AR"]
    np.testing.assert_allclose(panels[0].get_lines()[0].get_ydata(), 1.5)
    np.testing.assert_allclose(panels[1].get_lines()[0].get_ydata(), 0.3)
    np.testing.assert_allclose(panels[2].get_lines()[1].get_ydata(), 1.0)
    np.testing.assert_allclose(panels[3].get_lines()[0].get_xdata(), [1, 2, 3])
    assert "epoch 3, step 1500, best AP 0.300 after epoch 3" in panels[0].figure.get_suptitle()


def test_a_log_of_any_kind_is_drawn(run):
    short = train_line(1)
    del short["terms"], short["data_wait"]
    for i, lines in enumerate(
        (
            [short],
            [epoch_line(5, 1, val_loss=None, train_loss=None)],
            [train_line(1, loss=None)],
            [epoch_line(5, 1), train_line(9, terms=None), train_line(12, terms=[[1.0] * 5])],
        )
    ):
        assert len(training_figure(read_log(run(*lines, name=str(i)) / LOG), "x").axes) == 7


def test_epochs_go_on_after_the_last_that_ended(run):
    history = read_log(run(train_line(5), epoch_line(10, 1), train_line(15)) / LOG)
    np.testing.assert_allclose(history.at(history.train), [0.5, 1.5])
    assert read_log(run(train_line(5), name="young") / LOG).at([train_line(5)]) == [5]


def test_what_was_done_again_counts_once_and_torn_lines_do_not(run):
    torn = "null", "[]", '{"kind": "tr'
    history = read_log(
        run(
            train_line(5),
            train_line(10),
            train_line(15),
            epoch_line(15, 1),
            *torn,
            train_line(10, loss=7.0),
            {"kind": "other", "step": 3},
        )
        / LOG
    )
    assert [(line["step"], line["loss"]) for line in history.train] == [(5, 2.0), (10, 7.0)]


def test_long_runs_are_thinned(run):
    history = read_log(run(*(train_line(step) for step in range(1, 3 * POINTS))) / LOG)
    assert len(training_figure(history, "x").axes[4].get_lines()[0].get_xdata()) == POINTS


def test_the_tool_draws_where_it_is_told(run, tmp_path, capsys):
    folder = run(*full_run())
    assert run_tool("plot", [str(folder / LOG), "--output", str(tmp_path / "new" / "c.svg")]) == 0
    assert "<svg" in (tmp_path / "new" / "c.svg").read_text()
    capsys.readouterr()
    for words, message in (
        ([str(tmp_path)], "name the folder of a run"),
        ([str(run(name="empty"))], "nothing to draw yet"),
        ([str(folder), "--output", "c.docx"], "choose .png"),
        ([str(folder), "--output", "c"], "choose .png"),
    ):
        assert run_tool("plot", words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_without_matplotlib_there_is_one_clear_line(run, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not figure.can_draw()
    assert run_tool("plot", [str(run(*full_run()))]) == 2
    error = capsys.readouterr().err
    assert "pip install 'posenet[plot]'" in error and error.count("\n") == 1
    with pytest.raises(ConfigError, match="pip install"):
        figure.new_figure(1, 1, (2, 2))


def test_no_run_is_told(tmp_path):
    with pytest.raises(DataError, match="log.jsonl"):
        read_log(tmp_path / LOG)
