"""Which images the gallery holds, and the small copies of them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.annotations.coco import CocoImage
from posenet.diagnosis.report import shown_images, thumbnails
from posenet.diagnosis.report.shown_images import choose_images, image_losses
from posenet.diagnosis.report.thumbnails import NO_FOLDER, read_thumbnails
from tests.helpers.diagnoses import HEIGHT, WIDTH, diagnose_data, small_data, small_diagnosis


def test_the_worst_image_and_the_worst_of_each_kind_are_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = small_diagnosis(tmp_path)
    for limit, expected in ((400, [11, 12, 13, 14, 15]), (4, [11, 12, 13, 14])):  # 15 has no error
        monkeypatch.setattr(shown_images, "MAX_IMAGES", limit)
        assert [diagnosis.images[index].id for index in choose_images(diagnosis)] == expected


def test_an_image_without_errors_is_chosen_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without image 13 no keypoint is misplaced, and no image is the worst of that kind. The perfect one is first."""
    document, results = small_data()
    new_ids = {15: 1, 11: 2, 12: 3, 14: 4}
    document["images"] = [
        image | {"id": new_ids[image["id"]]} for image in document["images"] if image["id"] in new_ids
    ]
    document["annotations"], results = (
        [entry | {"image_id": new_ids[entry["image_id"]]} for entry in entries if entry["image_id"] in new_ids]
        for entries in (document["annotations"], results)
    )
    diagnosis = diagnose_data(document, results, tmp_path)
    assert diagnosis.counts["miss"] == 0 < min(diagnosis.counts[kind] for kind in ("jitter", "swap", "inversion"))
    monkeypatch.setattr(shown_images, "MAX_IMAGES", 3)
    assert [diagnosis.images[index].id for index in choose_images(diagnosis)] == [2, 3, 4]


def test_the_loss_of_an_image_is_the_missing_similarity_of_its_people(tmp_path: Path) -> None:
    losses = image_losses(small_diagnosis(tmp_path))
    assert losses[2:] == pytest.approx([8 / 17, 1, 0], abs=0.01)
    assert losses[0] == pytest.approx(0.6 / 17 + 1 / 17, abs=0.01)


def image(number: int, name: str) -> CocoImage:
    return CocoImage(number, name, HEIGHT, WIDTH)


@pytest.mark.parametrize("count, side", [(2, 640), (3, 400)])
def test_many_images_are_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, side: int) -> None:
    monkeypatch.setattr(thumbnails, "FEW_IMAGES", 2)
    for height, width, small in ((600, 800, (side * 3 // 4, side, 3)), (2, 3000, (1, side, 3))):
        cv2.imwrite(str(tmp_path / "a.png"), np.full((height, width, 3), 90, np.uint8))
        images = [CocoImage(1, "a.png", height, width)] * count
        thumbnail = read_thumbnails(images, tmp_path, progress=False)[-1]
        decoded = cv2.imdecode(np.frombuffer(thumbnail.jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert decoded.shape == small and not thumbnail.note
        assert np.abs(decoded.astype(int) - 90).max() < 4


def test_what_cannot_be_shown_has_a_note(tmp_path: Path) -> None:
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8 no more")
    cv2.imwrite(str(tmp_path / "other.png"), np.zeros((100, 100, 3), np.uint8))
    images = [image(1, "missing.jpg"), image(2, "damaged.jpg"), image(3, "other.png")]
    missing, damaged, other = read_thumbnails(images, tmp_path, progress=False)
    assert not missing.jpeg and "missing.jpg" in missing.note
    assert not damaged.jpeg and "damaged.jpg" in damaged.note
    assert cv2.imdecode(np.frombuffer(other.jpeg, np.uint8), cv2.IMREAD_COLOR).shape == (100, 100, 3), "not enlarged"
    assert "100 x 100" in other.note and f"{WIDTH} x {HEIGHT}" in other.note
    assert {thumbnail.note for thumbnail in read_thumbnails(images, None, progress=False)} == {NO_FOLDER}
