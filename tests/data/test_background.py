"""Images without people: which a build stores, their exact share of every epoch, and the loss of a batch of them."""

from collections import Counter
from pathlib import Path

import pytest

from posenet.cli.main import main
from posenet.data.build import build_store
from posenet.data.dataset import PoseDataset
from posenet.data.loader import TrainSampler
from posenet.data.store import Store, verify_store
from posenet.data.store_list import StoreList, count_background, open_data_sets
from posenet.errors import DataError
from posenet.settings import AugmentConfig, DataSetConfig
from posenet.skeleton import COCO
from tests.helpers.drawn_data import crowd, decode_masks, document, person, write_annotations, write_images
from tests.helpers.tiny_training import train_tiny, weights

PEOPLE = range(1, 21)
EMPTY = range(31, 38)


def write_photographs(folder: Path) -> tuple[Path, Path]:
    """20 images of a person, 7 of nobody, one of a crowd, and one of a person who is too small."""
    annotations = [person(100 + number, number) for number in PEOPLE]
    annotations += [crowd(200, 40, (0, 0, 50, 50)), person(201, 41, labelled=2)]
    content = document([*PEOPLE, *EMPTY, 40, 41], annotations)
    return write_images(folder / "images", content), write_annotations(folder / "a.json", content)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The stores ``with`` and ``without`` images of nobody."""
    folder = tmp_path_factory.mktemp("background")
    coco = write_photographs(folder)
    for name in ("with", "without"):
        build_store(*coco, folder / f"{name}.h5", background=name == "with", progress=False)
    return {name: folder / f"{name}.h5" for name in ("with", "without")}


def ids_of_epoch(stores: StoreList, share: float, epoch: int) -> Counter[int]:
    """How often an epoch draws each image, always with another augmentation."""
    dataset = PoseDataset(stores, (64, 64))
    sampler = TrainSampler(len(dataset), 1, 3, sample_counts=stores.sample_counts("person", share))
    sampler.start(epoch)
    indices = [index for [(_, index)] in sampler]
    assert len(set(indices)) == len(indices)
    return Counter(dataset.read_record(index)[0].image_id for index in indices)


def test_only_images_without_any_annotation_are_stored(tmp_path: Path) -> None:
    coco = write_photographs(tmp_path)
    for background, num_background, counts in ((False, 0, [7, 2]), (True, 7, [2])):
        report = build_store(*coco, tmp_path / "b.h5", background=background, overwrite=True, progress=False)
        assert count_background(report.store) == num_background
        assert list(report.without_sample.values()) == counts
    with Store(tmp_path / "b.h5") as store:
        assert store.image_ids.tolist() == [*PEOPLE, *EMPTY] and len(store) == 20
        verify_store(store)
        record = store.read_record(22)
        person_mask, mask_miss = decode_masks(record)
    assert record.is_annotated and len(record.people) == 0
    assert not person_mask.any() and mask_miss.all()


@pytest.mark.parametrize("share, count", [(0.0, 0), (0.1, 2), (0.5, 20), (0.9, 180)])
def test_every_epoch_contains_exactly_the_share_and_draws_all_equally_often(
    paths: dict[str, Path], share: float, count: int
) -> None:
    with open_data_sets(str(paths["with"]), None) as stores:
        totals: Counter[int] = Counter()
        for epoch in range(7):
            ids = ids_of_epoch(stores, share, epoch)
            assert ids.total() == 20 + count and all(ids[number] == 1 for number in PEOPLE)
            totals.update(ids)
        drawn = [totals[number] for number in EMPTY]
    assert sum(drawn) == 7 * count and max(drawn) - min(drawn) <= 1


@pytest.mark.parametrize("framing", ["person", "image"])
def test_they_have_no_people_and_are_supervised_everywhere(paths: dict[str, Path], framing: str) -> None:
    with open_data_sets(str(paths["with"]), None) as stores:
        dataset = PoseDataset(stores, (64, 128), framing, AugmentConfig())
        assert len(dataset) == 27
        batch = dataset.__getitems__([(1, index) for index in range(20, 27)])
    assert batch.image_ids.tolist() == list(EMPTY)
    assert not batch.joints.any() and not batch.person_mask.any() and (batch.mask_miss == 255).all()


def test_a_run_with_batches_of_nobody_has_a_finite_loss(paths: dict[str, Path], tmp_path: Path) -> None:
    stores = {"train": paths["with"], "val": paths["without"]}
    settings = ("data.background=0.8", "data.allow_overlap=true", "data.framing=image")
    assert train_tiny(stores, tmp_path / "run", *settings, max_steps=4).steps == 4
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "run").values())
    assert "NaN" not in (tmp_path / "run" / "log.jsonl").read_text()


def test_several_sets_share_their_images_of_nobody(paths: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    content = document([51, 52, 53, 54], [person(10, 51), person(11, 52)])
    coco = write_images(other / "images", content), write_annotations(tmp_path / "b.json", content)
    build_store(*coco, tmp_path / "b.h5", background=True, progress=False)
    sets = (DataSetConfig(str(paths["with"]), weight=0.5), DataSetConfig(str(tmp_path / "b.h5")))
    with open_data_sets(sets, COCO) as stores:
        assert stores.sample_counts("person", 0.25) == [(20, 10), (2, 2), (9, 4)]
        dataset = PoseDataset(stores, (64, 64))
        assert [dataset.read_record(index)[0].image_id for index in (19, 20, 21, 22, 30)] == [20, 51, 52, 31, 54]


def test_a_store_of_images_of_nobody_alone_is_trained_on_beside_one_of_people(
    paths: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = document([61, 62, 63], [])
    coco = write_images(tmp_path / "images", content), write_annotations(tmp_path / "a.json", content)
    with pytest.raises(DataError, match=r"a.json has .*--background stores"):
        build_store(*coco, tmp_path / "a.h5", progress=False)
    nobody = tmp_path / "b.h5"
    words = ["build-hdf5", "--images", str(coco[0]), "--background", "--output", str(nobody)]
    assert main(words) == 0  # a folder alone
    assert "background    3 images" in capsys.readouterr().out
    with Store(nobody) as store:
        assert len(store) == 0 and count_background(store) == 3
        assert all(decode_masks(store.read_record(row))[1].all() for row in range(3))
    both = (str(paths["without"]), str(nobody))
    with open_data_sets(both, None) as stores:
        assert stores.sample_counts("person", 0.2) == [(20, 20), (0, 0), (3, 5)]
        drawn = ids_of_epoch(stores, 0.2, 1)
    assert sum(drawn[number] for number in PEOPLE) == 20 and drawn.total() == 25
    settings = ("data.background=0.5", "data.allow_overlap=true", f"data.train={list(both)}")
    same = {"train": paths["without"], "val": paths["without"]}
    assert train_tiny(same, tmp_path / "run", *settings, max_steps=3).steps == 3
    for split in ("train", "val"):
        with pytest.raises(DataError, match=r"b.h5 shows no people"):
            train_tiny(same | {split: nobody}, tmp_path / "alone", "data.allow_overlap=true")
