"""The curves of a run from its log, with and without matplotlib."""

import json
import sys

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.errors import ConfigError, DataError
from posenet.images import read_image
from posenet.visualization.matplotlib_figure import has_matplotlib, new_figure
from posenet.visualization.training_curves import LOG_FILE, MAX_POINTS, read_log, training_figure, write_curves
from tests.helpers.run_logs import epoch_entry, train_entry


@pytest.fixture
def run(tmp_path):
    def write(*lines, name="my run"):
        (tmp_path / name).mkdir()
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / name / LOG_FILE).write_text(text)
        return tmp_path / name

    return write


def full_run():
    lines = [train_entry(step, epoch=(step - 1) // 500, loss=100 / step) for step in range(10, 1501, 10)]
    return (
        lines
        + [epoch_entry(500 * e, e, AP=0.1 * e, AR=0.2 * e, AP50=0.3, AP75=0.1) for e in (1, 2, 3)]
        + [{"kind": "skip", "step": 700, "value": "inf", "image_ids": [1]}]
    )


def test_the_curves_of_a_whole_run_are_drawn_without_pyplot(run):
    before = "matplotlib.pyplot" in sys.modules
    path = write_curves(run(*full_run()))
    assert ("matplotlib.pyplot" in sys.modules) == before
    assert path.name == "curves.png"
    image = read_image(path)
    assert image.shape[0] > 700 and image.shape[1] > 1400 and image.std() > 10


def test_every_series_of_the_log_has_a_curve(run):
    panels = training_figure(read_log(run(*full_run()) / LOG_FILE), "my run").axes
    labels = [[line.get_label() for line in panel.get_lines()] for panel in panels]
    assert labels[0] == ["training, between log lines", "training, mean of the epoch", "validation", "skipped steps"]
    assert labels[1] == [f"stride {s}" for s in (4, 8, 16, 32, 64)] and labels[2] == ["stack 1", "stack 2"]
    assert labels[3] == ["AP", "AP50", "AP75", "AR"]
    np.testing.assert_allclose(panels[0].get_lines()[0].get_ydata(), 1.5)
    np.testing.assert_allclose(panels[1].get_lines()[0].get_ydata(), 0.3)
    np.testing.assert_allclose(panels[2].get_lines()[1].get_ydata(), 1.0)
    np.testing.assert_allclose(panels[3].get_lines()[0].get_xdata(), [1, 2, 3])
    assert "epoch 3, step 1500, best AP 0.300 after epoch 3" in panels[0].figure.get_suptitle()


def test_incomplete_logs_are_drawn(run):
    short = train_entry(1)
    del short["terms"], short["data_wait"]
    for i, lines in enumerate(
        (
            [short],
            [epoch_entry(5, 1, val_loss=None, train_loss=None)],
            [train_entry(1, loss=None)],
            [epoch_entry(5, 1), train_entry(9, terms=None), train_entry(12, terms=[[1.0] * 5])],
        )
    ):
        assert len(training_figure(read_log(run(*lines, name=str(i)) / LOG_FILE), "x").axes) == 7


def test_entries_after_the_last_epoch_continue_at_its_pace(run):
    history = read_log(run(train_entry(5), epoch_entry(10, 1), train_entry(15)) / LOG_FILE)
    np.testing.assert_allclose(history.positions(history.train), [0.5, 1.5])
    assert read_log(run(train_entry(5), name="young") / LOG_FILE).positions([train_entry(5)]) == [5]


def test_repeated_steps_count_once_and_incomplete_lines_are_skipped(run):
    incomplete = "null", "[]", '{"kind": "tr'
    history = read_log(
        run(
            train_entry(5),
            train_entry(10),
            train_entry(15),
            epoch_entry(15, 1),
            *incomplete,
            train_entry(10, loss=7.0),
            {"kind": "other", "step": 3},
        )
        / LOG_FILE
    )
    assert [(line["step"], line["loss"]) for line in history.train] == [(5, 2.0), (10, 7.0)]


def test_curves_of_long_runs_have_fewer_points(run):
    history = read_log(run(*(train_entry(step) for step in range(1, 3 * MAX_POINTS))) / LOG_FILE)
    assert len(training_figure(history, "x").axes[4].get_lines()[0].get_xdata()) == MAX_POINTS


def test_the_tool_writes_the_given_file_and_refuses_bad_input(run, tmp_path, capsys):
    folder = run(*full_run())
    assert run_tool("plot", [str(folder / LOG_FILE), "--output", str(tmp_path / "new" / "c.svg")]) == 0
    assert "<svg" in (tmp_path / "new" / "c.svg").read_text()
    capsys.readouterr()
    for words, message in (
        ([str(tmp_path)], "give the folder of a run"),
        ([str(run(name="empty"))], "nothing to draw yet"),
        ([str(folder), "--output", "c.docx"], "choose .png"),
        ([str(folder), "--output", "c"], "choose .png"),
    ):
        assert run_tool("plot", words) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1


def test_a_missing_matplotlib_is_reported_in_one_line(run, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not has_matplotlib()
    assert run_tool("plot", [str(run(*full_run()))]) == 2
    error = capsys.readouterr().err
    assert "pip install 'posenet[plot]'" in error and error.count("\n") == 1
    with pytest.raises(ConfigError, match="pip install"):
        new_figure(1, 1, (2, 2))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(DataError, match="log.jsonl"):
        read_log(tmp_path / LOG_FILE)
