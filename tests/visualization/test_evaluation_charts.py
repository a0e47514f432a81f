"""Charts of an evaluation."""

import numpy as np
import pytest

from posenet.images import read_image
from posenet.inference.coco_evaluation import METRICS, Evaluation
from posenet.visualization.evaluation_charts import chart_paths, keypoint_figure, precision_figure, write_charts
from posenet.visualization.matplotlib_figure import new_figure, save_figure


@pytest.fixture
def evaluation():
    precision = np.clip(np.linspace(1.2, 0, 101) - np.linspace(0, 0.5, 10)[:, None], 0, 1)
    return Evaluation(dict.fromkeys(METRICS, 0.5), 8, {"nose": 0.75, "Leye": 0.25, "Reye": -1}, precision)


def test_both_charts_are_written(evaluation, tmp_path):
    paths = write_charts(evaluation, tmp_path / "plots")
    assert paths == chart_paths(tmp_path / "plots")
    assert sorted(path.name for path in paths) == ["keypoints.png", "precision_recall.png"]
    assert all(read_image(path).std() > 10 for path in paths)


def test_the_legend_states_the_average_precisions(evaluation):
    [panel] = precision_figure(evaluation).axes
    assert panel.get_legend().get_texts()[-1].get_text() == f"mean of 0.50 to 0.95: {evaluation.precision.mean():.3f}"
    assert panel.get_legend().get_texts()[0].get_text() == f"OKS 0.50: {evaluation.precision[0].mean():.3f}"


def test_only_labelled_keypoints_have_a_bar(evaluation):
    [panel] = keypoint_figure(evaluation).axes
    assert [label.get_text() for label in panel.get_yticklabels()] == ["nose", "Leye"]
    assert [bar.get_width() for bar in panel.patches] == [0.75, 0.25]


def test_names_with_dollar_signs_are_not_read_as_formulas(evaluation, tmp_path):
    odd = Evaluation(evaluation.metrics, 8, {"$\\frac$": 0.5, "a$b_$": 0.5}, evaluation.precision)
    assert len(write_charts(odd, tmp_path)) == 2
    figure, _ = new_figure(1, 1, (3, 2), "run $\\frac$")
    save_figure(figure, tmp_path / "title.png")


def test_a_split_without_people_has_charts(tmp_path):
    assert write_charts(Evaluation(dict.fromkeys(METRICS, -1.0), 1, {"nose": -1}), tmp_path)
