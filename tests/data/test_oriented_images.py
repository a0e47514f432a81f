"""One lit block goes from a turned file through the store and the data set to its keypoint, and to an AP of 1."""

from pathlib import Path

import numpy as np
import pytest

from posenet.annotations.outlines import decode_mask
from posenet.data.build import build_store
from posenet.data.dataset import PoseDataset
from posenet.data.store import Store, verify_store
from posenet.errors import DataError
from posenet.inference.evaluation import evaluate
from posenet.inference.predictor import Predictor
from posenet.inference.result import Result
from posenet.person import Person
from posenet.settings import AugmentConfig, ExifFrame, InferenceConfig
from posenet.skeleton import COCO
from tests.helpers.drawn_data import document, make_record, person, same_batch, write_annotations, write_store
from tests.helpers.oriented_images import BLOCK, OrientedImage, lit_centre, oriented_image
from tests.helpers.spot_networks import SpotNetwork

NOSE = COCO.keypoints.index("nose")
DISPLAYED = [(orientation, "displayed") for orientation in range(1, 9)]
STORED = [(orientation, "stored") for orientation in (1, 3, 6, 8)]


def write_one(folder: Path, drawn: OrientedImage, frame: str, outline: str = "polygon") -> tuple[Path, Path]:
    """Image folder and annotations of one person around the lit block, with the nose in its centre.

    The outline is the block: a polygon, or run lengths.
    """
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.jpg").write_bytes(drawn.data)
    x, y = drawn.centres[frame]
    height, width = drawn.sizes[frame]
    entry = person(1, 1, (x - 30, y - 30, 60, 60))
    entry["keypoints"][:3] = [x, y, 2]
    left, top = round(x - (BLOCK - 1) / 2), round(y - (BLOCK - 1) / 2)
    right, bottom = left + BLOCK, top + BLOCK
    counts = [left * height + top, *[BLOCK, height - BLOCK] * (BLOCK - 1), BLOCK]
    run_lengths = {"size": [height, width], "counts": [*counts, height * width - sum(counts)]}
    polygon = [[left, top, right, top, right, bottom, left, bottom]]
    entry["segmentation"] = polygon if outline == "polygon" else run_lengths
    content = document([1], [entry])
    content["images"][0] |= {"file_name": "a.jpg", "height": height, "width": width}
    return folder / "images", write_annotations(folder / "a.json", content)


# Every orientation, both frames, and sides that a reduction rounds.
@pytest.mark.parametrize("size", [(160, 240), (163, 239)])
@pytest.mark.parametrize("orientation, frame", DISPLAYED + STORED)
def test_the_keypoint_and_the_mask_stay_on_the_block(
    tmp_path: Path, orientation: int, frame: ExifFrame, size: tuple[int, int]
) -> None:
    drawn = oriented_image(orientation, size)
    images, annotations = write_one(tmp_path, drawn, frame, "polygon" if size[0] == 160 else "run lengths")
    report = build_store(images, annotations, tmp_path / "a.h5", exif_frame=frame, workers=1, progress=False)
    codes = {one.code for one in report.adjustments}
    assert ("exif-by-setting" in codes) == (1 < orientation < 5)
    assert ("exif-turned" in codes) == (frame == "stored" and orientation > 1)
    centre = drawn.centres["displayed"]
    with Store(tmp_path / "a.h5") as store:
        verify_store(store, workers=1)
        record = store.read_record(0)
        assert record.image_bytes.tobytes() == drawn.data and record.orientation == orientation
        assert lit_centre(record.decode_image()) == pytest.approx(centre, abs=0.6)
        assert tuple(record.joints[0, NOSE, :2]) == pytest.approx(centre)
        mask = decode_mask(record.person_mask, record.height, record.width)
        assert mask.sum() == BLOCK**2 and lit_centre(mask[..., None] * 255) == pytest.approx(centre, abs=0.6)
        box = record.people["box"][0]
        assert box[:2] + box[2:] / 2 == pytest.approx(centre, abs=1)
        # The smaller the input, the more the image is reduced while it is decoded.
        for side in (64, 256):
            augment = AugmentConfig(jitter_probability=0, shift=4)
            for framing in ("person", "image"):
                dataset = PoseDataset(store, (side, side), framing, augment, seed=3)
                for epoch in range(3):
                    batch = dataset[epoch, 0]
                    found = lit_centre(batch.images[0].numpy())
                    assert found == pytest.approx(tuple(batch.joints[0, 0, NOSE, :2].tolist()), abs=1)


def test_a_turned_image_is_decoded_whole_where_a_reduction_would_move_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row of a reduced JPEG of odd size lies partly outside the image; a turn makes it the first."""
    build_store(*write_one(tmp_path, oriented_image(3, (163, 239)), "displayed"), tmp_path / "a.h5", progress=False)
    dataset = PoseDataset(tmp_path / "a.h5", (64, 64), "image")
    found = dataset[0, 0]
    monkeypatch.setattr("posenet.data.dataset.largest_reduction", lambda matrix: 1)
    assert same_batch(found, dataset[0, 0])


def test_mirrored_pixels_that_are_annotated_as_stored_are_refused(tmp_path: Path) -> None:
    images, annotations = write_one(tmp_path, oriented_image(7), "stored")
    with pytest.raises(DataError, match=r"a.jpg.*exif-mirrored"):
        build_store(images, annotations, tmp_path / "a.h5")


@pytest.mark.parametrize("orientation, frame", [(3, "displayed"), (3, "stored"), (6, "stored"), (7, "displayed")])
def test_a_prediction_at_the_lit_block_has_ap_1(tmp_path: Path, orientation: int, frame: ExifFrame) -> None:
    images, annotations = write_one(tmp_path, oriented_image(orientation), frame)
    offsets = np.array([(-30 + 60 * k / 17, -30 + 60 * k / 17) for k in range(17)])
    offsets[0] = 0
    turned = {1: offsets, 3: -offsets, 6: np.stack([-offsets[:, 1], offsets[:, 0]], axis=1)}

    class BlockPredictor(Predictor):
        def decode_batch(self, maps, frames):
            return [Result(image, [self.person_at(lit_centre(image.image))]) for image in frames]

        def person_at(self, centre):
            points = centre + turned[orientation if frame == "stored" else 1]
            keypoints = np.concatenate([points, np.full((17, 1), 2)], axis=1)[None]
            return Person(COCO.to_network_order(keypoints)[0], 1.0, COCO)

    predictor = BlockPredictor(SpotNetwork(), InferenceConfig(height=64))
    evaluation = evaluate(predictor, images, annotations, exif_frame=frame, progress=False)
    assert evaluation.metrics["AP"] == pytest.approx(1)


def test_a_store_of_version_0_6_that_keeps_the_stored_pixels_is_read_as_it_is(tmp_path: Path) -> None:
    drawn = oriented_image(6)
    height, width = drawn.sizes["stored"]
    record = make_record(1, 1, height, width)._replace(image_bytes=np.frombuffer(drawn.data, np.uint8))
    with Store(write_store(tmp_path / "a.h5", [record])) as store:
        verify_store(store)
        assert lit_centre(store.read_record(0).decode_image()) == pytest.approx(drawn.centres["stored"], abs=0.6)
