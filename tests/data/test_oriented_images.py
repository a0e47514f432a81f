"""One lit block goes from a turned file through the store and the data set to its keypoint, and to an AP of 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from posenet.cli.main import run_tool
from posenet.data.build import build_store
from posenet.data.dataset import PoseDataset
from posenet.data.inspection import verify_store
from posenet.data.store import Store
from posenet.person import Person
from posenet.settings import AugmentConfig
from posenet.skeleton import COCO
from tests.helpers.drawn_data import document, person, write_annotations
from tests.helpers.evaluations import evaluate_people
from tests.helpers.oriented_images import OrientedImage, lit_centre, oriented_image

NOSE = COCO.keypoints.index("nose")


def write_one(folder: Path, drawn: OrientedImage, frame: str) -> tuple[Path, Path]:
    """Image folder and annotations of one person around the lit block, with the nose in its centre."""
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.jpg").write_bytes(drawn.data)
    x, y = drawn.centres[frame]
    height, width = drawn.sizes[frame]
    entry = person(1, 1, (x - 30, y - 30, 60, 60))
    entry["keypoints"][:3] = [x, y, 2]
    content = document([1], [entry])
    content["images"][0] |= {"file_name": "a.jpg", "height": height, "width": width}
    return folder / "images", write_annotations(folder / "a.json", content)


# Every orientation, both frames, and sides that a reduction rounds.
@pytest.mark.parametrize(
    "orientation, frame, size",
    [(o, ("stored", "displayed")[o % 2], (160, 240)) for o in range(1, 9)]
    + [(o, ("displayed", "stored")[o % 2], (163, 239)) for o in (1, 3, 6, 7)],
)
def test_the_keypoint_stays_on_the_block(tmp_path: Path, orientation: int, frame: str, size: tuple[int, int]) -> None:
    drawn = oriented_image(orientation, size)
    images, annotations = write_one(tmp_path, drawn, frame)
    report = build_store(images, annotations, tmp_path / "a.h5", exif_frame=frame, workers=1)
    reason = "size" if orientation >= 5 else "setting"
    assert report.frames == ({} if orientation == 1 else {f"{frame} frame by {reason}": 1})
    with Store(tmp_path / "a.h5") as store:
        verify_store(store, workers=1)
        record = store.read_record(0)
        assert record.image_bytes.tobytes() == drawn.data
        assert lit_centre(record.decode_image()) == pytest.approx(drawn.centres[frame], abs=0.6)
        assert tuple(record.joints[0, NOSE, :2]) == pytest.approx(drawn.centres[frame])
        # The smaller the input, the more the image is reduced while it is decoded.
        for side in (64, 256):
            augment = AugmentConfig(jitter_probability=0, shift=4)
            for framing in ("person", "image"):
                dataset = PoseDataset(store, (side, side), framing, augment, seed=3)
                for epoch in range(4):
                    batch = dataset[epoch, 0]
                    found = lit_centre(batch.images[0].numpy())
                    assert found == pytest.approx(tuple(batch.joints[0, 0, NOSE, :2].tolist()), abs=1)


@pytest.mark.parametrize("orientation, frame", [(3, "displayed"), (6, "stored"), (6, "displayed"), (7, "displayed")])
def test_a_prediction_at_the_lit_block_has_ap_1(tmp_path: Path, orientation: int, frame: str) -> None:
    images, annotations = write_one(tmp_path, oriented_image(orientation), frame)

    def predict(pixels):
        for image in pixels:
            x, y = lit_centre(image)
            offsets = [(-30 + 60 * k / 17, -30 + 60 * k / 17) for k in range(17)]
            keypoints = np.array([[[x + dx, y + dy, 2] for dx, dy in offsets]])
            keypoints[0, 0, :2] = x, y
            yield [Person(COCO.to_network_order(keypoints)[0], 1.0, COCO)]

    evaluation = evaluate_people(predict, images, annotations, exif_frame=frame)
    assert evaluation.metrics["AP"] == pytest.approx(1)


def test_build_reports_what_decided_the_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images, annotations = write_one(tmp_path, oriented_image(3), "stored")
    command = ["--images", str(images), "--annotations", str(annotations), "--output", str(tmp_path / "a.h5")]
    assert run_tool("build-hdf5", command) == 0
    assert "1 image with an EXIF orientation: displayed frame by setting" in capsys.readouterr().out
    assert run_tool("build-hdf5", [*command, "--overwrite", "--set", "data.exif_frame=stored"]) == 0
    assert "1 image with an EXIF orientation: stored frame by setting" in capsys.readouterr().out
