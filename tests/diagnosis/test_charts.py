"""Charts of a diagnosis."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from posenet.diagnosis.charts import chart_paths, costs_figure, precision_figure, write_charts
from posenet.diagnosis.result import CORRECTIONS, Diagnosis
from posenet.images import read_image
from tests.helpers.diagnoses import small_diagnosis


@pytest.fixture
def diagnosis() -> Diagnosis:
    return small_diagnosis()


def test_both_charts_are_written(diagnosis: Diagnosis, tmp_path: Path) -> None:
    odd = dataclasses.replace(diagnosis, name="$\\frac$.json")
    paths = write_charts([diagnosis, odd], tmp_path / "charts")
    assert paths == chart_paths(tmp_path / "charts")
    assert [path.name for path in paths] == ["costs.png", "precision.png"]
    assert all(read_image(path).std() > 10 for path in paths)


def test_the_bar_is_filled_by_the_ap_and_the_costs(diagnosis: Diagnosis) -> None:
    [panel] = costs_figure([diagnosis]).axes
    widths = [bar.get_width() for bar in panel.patches]
    assert widths == pytest.approx([diagnosis.ap, *diagnosis.costs.values()])
    assert sum(widths) == pytest.approx(diagnosis.corrected["missed"])
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["AP", *CORRECTIONS]


def test_every_results_file_has_a_panel_with_the_cost_of_each_kind(diagnosis: Diagnosis) -> None:
    figure = precision_figure([diagnosis, diagnosis])
    assert len(figure.axes) == 2
    labels = [text.get_text() for text in figure.axes[1].get_legend().get_texts()]
    assert labels[0] == f"AP {diagnosis.ap:.3f}" and labels[4] == f"jitter {diagnosis.costs['jitter']:+.3f}"
    areas = [np.ptp(collection.get_paths()[0].vertices[:, 1]) for collection in figure.axes[0].collections]
    assert len(areas) == 8 and areas[0] > 0
