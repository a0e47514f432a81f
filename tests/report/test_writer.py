"""Writing the report."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from posenet.report import write_report
from tests.helpers.diagnoses import HEIGHT, WIDTH, diagnosis_of, image_of, small_diagnosis, true_person, two_runs


def test_it_writes_one_file_into_a_new_folder(tmp_path: Path) -> None:
    path = write_report([small_diagnosis()], None, tmp_path / "new" / "report", None, progress=False)
    assert path == tmp_path / "new" / "report" / "report.html"
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_it_embeds_the_images_of_the_gallery(tmp_path: Path) -> None:
    image = image_of(7, [true_person(300)], [{0: "miss"}], name="photos/one.png")
    (tmp_path / "photos").mkdir()
    cv2.imwrite(str(tmp_path / "photos" / "one.png"), np.zeros((HEIGHT, WIDTH, 3), np.uint8))
    path = write_report([diagnosis_of([image])], None, tmp_path, tmp_path, progress=False)
    assert '"jpeg":"/9j/' in path.read_text(encoding="utf-8")


def test_the_same_diagnosis_gives_the_same_page(tmp_path: Path) -> None:
    diagnoses, comparison = two_runs()
    pages = [
        write_report(diagnoses, comparison, tmp_path / name, None, progress=False).read_bytes() for name in ("a", "b")
    ]
    assert pages[0] == pages[1]
