"""Several data sets as one: their records, what they supervise, and sets that do not fit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from posenet.data.dataset import PoseDataset
from posenet.data.loader import TrainSampler
from posenet.data.store import Store
from posenet.data.store_list import StoreList, find_shared_images, find_stored_files, open_data_sets
from posenet.errors import DataError
from posenet.settings import AugmentConfig, DataSetConfig
from posenet.skeleton import COCO
from posenet.skeleton.skeleton import KeypointMapping
from posenet.skeleton.skeleton_file import skeleton_from_table
from tests.helpers.drawn_data import make_record, same_batch, split_store, write_store
from tests.helpers.faceless_people import FACELESS, write_faceless_store


@pytest.fixture
def paths(stores: dict[str, Path], tmp_path: Path) -> dict[str, str]:
    """A store with faces and one without, of different people."""
    return {"faces": str(stores["train"]), "limbs": str(write_faceless_store(stores["val"], tmp_path / "limbs.h5"))}


@pytest.fixture
def mixture(paths: dict[str, str]) -> StoreList:
    """A path and a table."""
    return open_data_sets([paths["faces"], DataSetConfig(paths["limbs"], weight=2.5)], COCO)


def write_pair_store(path: Path, *keypoints: str) -> None:
    """A store of one image whose skeleton has two keypoints."""
    skeleton = skeleton_from_table({"keypoints": keypoints, "parts": [keypoints]})
    record = make_record(1)._replace(joints=np.ones((2, 2, 3), np.float32))
    record.people["box"] = (10, 10, 40, 50)
    write_store(path, [record], skeleton=skeleton)


def test_a_store_of_the_same_keypoints_needs_no_supervision_and_another_one_is_mapped(paths: dict[str, str]) -> None:
    for setting in (paths["faces"], (paths["faces"],)):
        with open_data_sets(setting, COCO) as stores, Store(paths["faces"]) as store:
            assert stores.fingerprint == store.fingerprint
            assert stores.read_record(0).supervised is None
    with open_data_sets(paths["limbs"], COCO) as stores:
        assert not stores.read_record(0).supervised.all()
    fewer_parts = replace(COCO, parts=COCO.parts[:3])
    with open_data_sets(paths["faces"], fewer_parts) as stores:
        assert stores.skeleton == fewer_parts and stores.read_record(0).supervised is None


def test_stores_in_a_list_are_read_as_one(stores: dict[str, Path], tmp_path: Path) -> None:
    """Samples, epochs and what they supervise are those of one store with all records."""
    parts = tuple(split_store(stores["train"], tmp_path / "parts", 3))
    with Store(stores["train"]) as one, open_data_sets(parts, None) as many:
        for name in ("image_ids", "image_keys", "samples"):
            np.testing.assert_array_equal(getattr(many, name), getattr(one, name))
        whole = PoseDataset(one, (64, 64), augment=AugmentConfig())
        listed = PoseDataset(many, (64, 64), augment=AugmentConfig())
        orders = [
            list(TrainSampler(len(one), 2, 5, sample_counts=counts)) for counts in ((), many.sample_counts("person"))
        ]
        assert orders[0] == orders[1]
        for keys in orders[0]:
            assert same_batch(listed.__getitems__(keys), whole.__getitems__(keys))
            assert listed.__getitems__(keys).supervised is None
        for bad in (-1, one.num_images):
            with pytest.raises(IndexError):
                many.read_record(bad)


def test_an_image_in_two_stores_of_a_list_is_refused(tmp_path: Path) -> None:
    first = write_store(tmp_path / "a1.h5", [make_record(1), make_record(2)])
    second = write_store(tmp_path / "a2.h5", [make_record(3), make_record(2)._replace(image_id=7)])
    other_bytes = write_store(tmp_path / "a3.h5", [make_record(9)._replace(image_id=1)])
    with pytest.raises(DataError, match=r"a1\.h5 and .*a2\.h5 share 1 images, such as image 7 "):
        open_data_sets((str(first), str(second)), COCO)
    assert open_data_sets((str(first), str(other_bytes)), COCO).num_images == 3


def test_the_sets_follow_one_another_in_the_order_of_the_settings(mixture: StoreList, paths) -> None:
    with Store(paths["faces"]) as faces, Store(paths["limbs"]) as limbs:
        assert len(mixture) == len(faces) + len(limbs)
        assert mixture.samples[:, 1].tolist() == [*faces.samples[:, 1], *limbs.samples[:, 1]]
        rows = mixture.samples[:, 0].tolist()
        assert rows == [*faces.samples[:, 0], *(limbs.samples[:, 0] + faces.num_images)]
        for row in rows:
            record = mixture.read_record(row)
            is_limbs = row >= faces.num_images
            expected = limbs.read_record(row - faces.num_images) if is_limbs else faces.read_record(row)
            assert record.image_id == expected.image_id
            assert record.supervised[0].all() != is_limbs
            mapping = KeypointMapping(FACELESS if is_limbs else COCO, COCO)
            np.testing.assert_array_equal(record.joints, mapping.map_joints(expected.joints))


def test_a_sample_knows_its_supervised_channels(mixture: StoreList, stores: dict[str, Path]) -> None:
    dataset = PoseDataset(mixture, (64, 64))
    batch = dataset.__getitems__([(0, 0), (0, len(mixture) - 1)])
    expected = [KeypointMapping(skeleton, COCO).supervised_channels() for skeleton in (COCO, FACELESS)]
    np.testing.assert_array_equal(batch.supervised.numpy(), expected)
    full = open_data_sets([DataSetConfig(str(path)) for path in stores.values()], COCO)
    batch = PoseDataset(full, (64, 64)).__getitems__([(0, 0), (0, len(full) - 1)])
    assert batch.supervised is None, "no mask where all is supervised"


def test_the_channels_of_a_mirrored_sample_are_mirrored(tmp_path: Path) -> None:
    """A set with only a left shoulder: in a mirrored image it is a right one."""
    write_pair_store(tmp_path / "left.h5", "left_shoulder", "left_hip")
    mixture = open_data_sets([DataSetConfig(str(tmp_path / "left.h5"))], COCO)
    for flips, name in ((0.0, "left_shoulder"), (1.0, "right_shoulder")):
        dataset = PoseDataset(mixture, (64, 64), augment=AugmentConfig(flip_probability=flips))
        batch = dataset[0, 0]
        labelled = batch.joints[0, 0, :, 2].numpy() > 0
        np.testing.assert_array_equal(batch.supervised[0, COCO.keypoint_channels].numpy().astype(bool), labelled)
        assert labelled[COCO.index(name)] and labelled.sum() == 2


def test_an_epoch_draws_the_weight_times_the_size_of_a_set(mixture: StoreList, paths: dict[str, str]) -> None:
    assert [data_set.name for data_set in mixture.sets] == ["train", "limbs"]
    faces, limbs = (data_set.store for data_set in mixture.sets)
    counts = [(len(faces), len(faces)), (len(limbs), round(2.5 * len(limbs)))]
    assert mixture.sample_counts("person") == counts
    assert [size for size, _ in mixture.sample_counts("image")] == [faces.num_images, limbs.num_images]
    tiny = open_data_sets([DataSetConfig(paths["faces"], weight=1e-9)], COCO)
    assert tiny.sample_counts("person")[0].per_epoch == 1


def test_keypoints_and_parts_that_no_set_supervises_are_found(paths: dict[str, str], mixture: StoreList) -> None:
    assert mixture.never_supervised() == []
    alone = open_data_sets([DataSetConfig(paths["limbs"])], COCO)
    assert alone.never_supervised()[-5:] == ["nose", "right_eye", "left_eye", "right_ear", "left_ear"]
    assert "neck-nose" in alone.never_supervised()


def test_a_set_without_any_keypoint_of_the_network_or_a_copy_is_refused(paths: dict[str, str], tmp_path: Path) -> None:
    write_pair_store(tmp_path / "chairs.h5", "seat", "back")
    (tmp_path / "copy.h5").write_bytes(Path(paths["faces"]).read_bytes())
    for name, fault in (
        ("chairs", "data set chairs shares no keypoint with model.skeleton: it has seat, back;"),
        ("copy", "data sets train and copy are the same"),
    ):
        with pytest.raises(DataError, match=fault):
            open_data_sets([DataSetConfig(paths["faces"]), DataSetConfig(str(tmp_path / f"{name}.h5"))], COCO)


def test_shared_images_have_the_same_bytes_whatever_their_ids(tmp_path: Path, path: Path) -> None:
    renumbered = make_record(7)._replace(image_id=9, file_name="other.jpg")
    same_id = make_record(1)._replace(image_id=3)
    other = write_store(tmp_path / "b.h5", [renumbered, make_record(5), same_id])
    unrelated = write_store(tmp_path / "c.h5", [make_record(100)])
    shared = find_shared_images(Store(path), Store(other))
    assert sorted(shared.tolist()) == [[5, 5], [7, 9]]
    assert len(find_shared_images(Store(path), Store(unrelated))) == 0
    with open_data_sets((str(unrelated), str(other)), None) as both:
        assert sorted(find_shared_images(Store(path), both).tolist()) == [[5, 5], [7, 9]]


def test_files_that_a_store_contains_are_found_by_their_bytes(tmp_path: Path, path: Path) -> None:
    contents = {"shared.jpg": make_record(3), "other.jpg": make_record(4), "grown.jpg": make_record(5)}
    for name, record in contents.items():
        (tmp_path / name).write_bytes(record.image_bytes.tobytes())
    with open(tmp_path / "grown.jpg", "ab") as file:
        file.write(b"x")
    flipped = make_record(7).image_bytes.copy()
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "flipped.jpg").write_bytes(flipped.tobytes())
    names = [*contents, "flipped.jpg", "missing.jpg"]
    with open_data_sets(str(path), None) as stores:
        found = find_stored_files(stores, [tmp_path / name for name in names])
    assert found == [tmp_path / "shared.jpg"]
