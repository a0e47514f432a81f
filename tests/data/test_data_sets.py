"""Several data sets as one: their records, what they supervise, and sets that do not fit."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

from posenet.data.dataset import PoseDataset
from posenet.data.store import DataSetMixture, Store, open_data_sets
from posenet.errors import DataError
from posenet.settings import AugmentConfig, DataSetConfig
from posenet.skeleton import COCO
from posenet.skeleton.keypoint_mapping import KeypointMapping
from tests.helpers.drawn_data import make_record, write_store
from tests.helpers.faceless_people import FACELESS, write_faceless_store


@pytest.fixture
def paths(stores: dict[str, Path], tmp_path: Path) -> dict[str, str]:
    """A store with faces and one without, of different people."""
    return {"faces": str(stores["train"]), "limbs": str(write_faceless_store(stores["val"], tmp_path / "limbs.h5"))}


@pytest.fixture
def mixture(paths: dict[str, str]) -> DataSetMixture:
    return DataSetMixture([DataSetConfig(paths["faces"]), DataSetConfig(paths["limbs"], weight=2.5)], COCO)


def test_a_path_or_a_list_of_paths_is_one_store(paths: dict[str, str]) -> None:
    assert isinstance(open_data_sets(paths["faces"], COCO), Store)
    assert isinstance(open_data_sets((paths["faces"],), COCO), Store)
    with pytest.raises(DataError, match="built for another skeleton"):
        open_data_sets((paths["limbs"],), COCO)


def test_the_sets_follow_one_another_in_the_order_of_the_settings(mixture: DataSetMixture, paths) -> None:
    with Store(paths["faces"]) as faces, Store(paths["limbs"], FACELESS) as limbs:
        assert len(mixture) == len(faces) + len(limbs)
        for index in range(len(mixture)):
            record, row = mixture.read_sample(index)
            is_limbs = index >= len(faces)
            expected, expected_row = limbs.read_sample(index - len(faces)) if is_limbs else faces.read_sample(index)
            assert (record.image_id, row) == (expected.image_id, expected_row)
            assert record.supervision.set_index == is_limbs
            mapping = KeypointMapping(FACELESS if is_limbs else COCO, COCO)
            np.testing.assert_array_equal(record.joints, mapping.map_joints(expected.joints))


def test_a_sample_knows_its_set_and_the_channels_that_it_supervises(mixture: DataSetMixture) -> None:
    dataset = PoseDataset(mixture, (64, 64))
    batch = dataset.__getitems__([(0, 0), (0, len(mixture) - 1)])
    assert batch.set_indices.tolist() == [0, 1]
    expected = [KeypointMapping(skeleton, COCO).supervised_channels() for skeleton in (COCO, FACELESS)]
    np.testing.assert_array_equal(batch.supervised.numpy(), expected)
    assert dataset[0, len(mixture) - 1].set_index == 1


def test_sets_that_supervise_everything_need_no_mask(paths: dict[str, str], stores: dict[str, Path]) -> None:
    mixture = DataSetMixture([DataSetConfig(paths["faces"]), DataSetConfig(str(stores["val"]))], COCO)
    batch = PoseDataset(mixture, (64, 64)).__getitems__([(0, 0), (0, len(mixture) - 1)])
    assert batch.supervised is None
    assert batch.set_indices.tolist() == [0, 1]


def test_the_channels_of_a_mirrored_sample_are_mirrored(tmp_path: Path) -> None:
    """A set with only a left shoulder: in a mirrored image it is a right one."""
    one_sided = dataclasses.replace(
        FACELESS, keypoints=("Lsho", "Lhip"), parts=(("Lsho", "Lhip"),), left_right=(), derived={},
        file_keypoints=("Lsho", "Lhip"), file_names=("left_shoulder", "left_hip"), sigmas=(0.1, 0.1),
    )  # fmt: skip
    record = dataclasses.replace(make_record(1), joints=np.ones((2, 2, 3), np.float32))
    record.boxes[:] = (10, 10, 40, 50)
    write_store(tmp_path / "left.h5", [record], skeleton=one_sided)
    mixture = DataSetMixture([DataSetConfig(str(tmp_path / "left.h5"))], COCO)
    for flips, name in ((0.0, "Lsho"), (1.0, "Rsho")):
        dataset = PoseDataset(mixture, (64, 64), augment=AugmentConfig(flip_probability=flips))
        sample = dataset[0, 0]
        labelled = sample.joints[0, :, 2] > 0
        np.testing.assert_array_equal(sample.supervised[COCO.keypoint_channels].astype(bool), labelled)
        assert labelled[COCO.index(name)] and labelled.sum() == 2


def test_a_repeated_sample_is_augmented_differently(mixture: DataSetMixture) -> None:
    dataset = PoseDataset(mixture, (64, 64), augment=AugmentConfig())
    first, repeated = dataset[0, 0], dataset[0, len(dataset)]
    assert first.image_id == repeated.image_id
    assert not np.array_equal(first.joints, repeated.joints)


def test_an_epoch_draws_the_weight_times_the_size_of_a_set(mixture: DataSetMixture) -> None:
    sizes = [len(part) for part in mixture.parts]
    assert [tuple(draws) for draws in mixture.draws("person")] == [
        (sizes[0], sizes[0]),
        (sizes[1], round(2.5 * sizes[1])),
    ]
    assert [draws.size for draws in mixture.draws("image")] == [part.num_images for part in mixture.parts]
    tiny = DataSetMixture([dataclasses.replace(mixture.data_sets[0], weight=1e-9)], COCO)
    assert tiny.draws("person")[0].per_epoch == 1


def test_the_table_of_the_sets_names_sizes_and_missing_keypoints(mixture: DataSetMixture) -> None:
    (first, *_), (name, size, per_epoch, share, missing) = mixture.describe("image").rows
    assert (first, name, size, per_epoch) == ("train", "limbs", 3, 8)
    assert share == f"{8 / 14:.1%}"
    assert missing == "nose Reye Leye Rear Lear"


def test_keypoints_and_parts_that_no_set_supervises_are_found(paths: dict[str, str], mixture: DataSetMixture) -> None:
    assert mixture.never_supervised() == []
    alone = DataSetMixture([DataSetConfig(paths["limbs"])], COCO)
    assert alone.never_supervised()[-5:] == ["nose", "Reye", "Leye", "Rear", "Lear"]
    assert "neck-nose" in alone.never_supervised()


def test_a_pickled_mixture_reads_the_same_records(mixture: DataSetMixture) -> None:
    copy = pickle.loads(pickle.dumps(mixture))
    for index in range(len(mixture)):
        np.testing.assert_array_equal(copy.read_sample(index)[0].joints, mixture.read_sample(index)[0].joints)
    assert copy.fingerprint == mixture.fingerprint


def test_a_set_without_any_keypoint_of_the_network_is_refused(paths: dict[str, str], tmp_path: Path) -> None:
    chair = dataclasses.replace(
        FACELESS, keypoints=("seat", "back"), parts=(("seat", "back"),), left_right=(), derived={},
        file_keypoints=("seat", "back"), file_names=("seat", "back"), sigmas=(0.1, 0.1),
    )  # fmt: skip
    record = dataclasses.replace(make_record(1), joints=np.ones((2, 2, 3), np.float32))
    write_store(tmp_path / "chairs.h5", [record], skeleton=chair)
    with pytest.raises(DataError, match="data set chairs shares no keypoint with model.skeleton: it has seat, back;"):
        DataSetMixture([DataSetConfig(paths["faces"]), DataSetConfig(str(tmp_path / "chairs.h5"))], COCO)


def test_a_copy_of_another_set_is_refused(paths: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.h5"
    copy.write_bytes(Path(paths["faces"]).read_bytes())
    with pytest.raises(DataError, match="data sets train and copy are the same"):
        DataSetMixture([DataSetConfig(paths["faces"]), DataSetConfig(str(copy))], COCO)
