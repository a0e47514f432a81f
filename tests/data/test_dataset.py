"""The data set: shapes, frames, determinism and loaders."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from posenet.data import batch as batch_module
from posenet.data import shared_buffers as ring
from posenet.data.batch import Pixels, Sample, collate
from posenet.data.dataset import PoseDataset
from posenet.data.loader import close_loader, make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store.reader import Store
from posenet.errors import DataError
from posenet.settings import AugmentConfig
from posenet.skeleton import COCO


@pytest.fixture
def store(stores):
    with Store(stores["train"]) as store:
        yield store


def equal(a: Sample, b: Sample) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b))


@pytest.mark.parametrize("framing", ["person", "image"])
def test_sample_shapes_and_types(store, framing):
    dataset = PoseDataset(store, (128, 192), framing, AugmentConfig())
    assert len(dataset) == (len(store) if framing == "person" else store.num_images)
    sample = dataset[0, 0]
    assert sample.image.shape == (128, 192, 3) and sample.image.dtype == np.uint8
    assert sample.joints.shape[1:] == (18, 3) and sample.joints.dtype == np.float32
    assert sample.person_mask.shape == sample.mask_miss.shape == (32, 48)
    assert sample.person_mask.dtype == sample.mask_miss.dtype == np.uint8
    assert sample.person_mask.max() == 255


def test_a_512_sample_is_light(store):
    sample = PoseDataset(store, (512, 512))[0, 0]
    assert sum(part.nbytes for part in sample[:4]) < 0.85e6


def test_person_framing_centres_the_main_person_at_its_height(store):
    dataset = PoseDataset(store, (256, 256), "person")
    for index in range(len(store)):
        record, row = store.sample(index)
        joints = dataset[0, index].joints[row]
        box = record.boxes[row]
        scale = 0.6 * 255 / box[3]
        labelled = joints[:, 2] > 0
        expected = (record.joints[row][labelled, :2] - (box[:2] + box[2:] / 2)) * scale + 127.5
        assert np.allclose(joints[labelled, :2], expected, atol=1e-3)


def test_image_framing_shows_the_whole_picture(store):
    dataset = PoseDataset(store, (256, 384), "image")
    record = store.image(0)
    joints = dataset[0, 0].joints
    scale = min(256 / record.height, 384 / record.width)
    labelled = joints[..., 2] > 0
    expected = (record.joints[..., :2] - [(record.width - 1) / 2, (record.height - 1) / 2]) * scale + [191.5, 127.5]
    assert np.allclose(joints[labelled][:, :2], expected[labelled], atol=1e-3)


def test_sample_depends_on_seed_epoch_and_index_alone(store):
    one, two = (PoseDataset(store, (64, 64), augment=AugmentConfig(), seed=3) for _ in range(2))
    two[5, 2], two[0, 0]  # what was read before must not matter
    np.random.seed(0)
    assert equal(one[1, 0], two[1, 0])
    assert not equal(one[1, 0], one[2, 0])
    assert not equal(one[1, 0], PoseDataset(store, (64, 64), augment=AugmentConfig(), seed=4)[1, 0])


def test_collate_pads_people_with_unlabelled_rows():
    def sample(people: int) -> Sample:
        return Sample(
            np.zeros((8, 8, 3), np.uint8),
            np.ones((people, 18, 3), np.float32),
            np.zeros((2, 2), np.uint8),
            np.zeros((2, 2), np.uint8),
            people,
        )

    batch = collate([sample(1), sample(3)], Pixels.make(2, 8, 8))
    assert batch.joints.shape == (2, 3, 18, 3)
    assert batch.joints[0, 1:].abs().sum() == 0 and batch.joints[1].min() == 1
    assert batch.images.dtype == torch.uint8 and batch.image_ids.tolist() == [1, 3]


def test_workers_change_nothing(store):
    dataset = PoseDataset(store, (64, 64), augment=AugmentConfig())
    batches = {}
    for workers in (0, 2):
        sampler = TrainSampler(len(dataset), batch_size=2, seed=1)
        sampler.start(epoch=1, step=1)
        loader = make_loader(dataset, sampler, workers)
        batches[workers] = list(loader)
    assert len(batches[0]) == sampler.steps - 1
    for a, b in zip(batches[0], batches[2], strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5])) and a.faults == b.faults == ()


def test_a_batch_travels_as_one_piece_of_memory(store):
    batch = PoseDataset(store, (64, 128), augment=AugmentConfig()).__getitems__([(0, 0), (0, 1), (0, 2)])
    _, (address, pixels, *rest) = batch.__reduce__()
    shipped = batch.images, batch.person_mask, batch.mask_miss
    assert address is None and pixels.nbytes == sum(part.nbytes for part in shipped)
    assert not any(isinstance(value, torch.Tensor) for value in (*rest, *rest[-1].values()))
    cloned = type(batch)(*(part.clone() if isinstance(part, torch.Tensor) else part for part in batch))
    for travelled in (pickle.loads(pickle.dumps(batch)), pickle.loads(pickle.dumps(cloned))):
        assert all(torch.equal(x, y) for x, y in zip(travelled[:5], batch[:5])) and travelled[5:] == batch[5:]


def test_a_worker_without_shared_memory_says_so_before_it_dies_of_it(store, monkeypatch):
    dataset = PoseDataset(store, (64, 64))
    monkeypatch.setattr(batch_module, "get_worker_info", lambda: SimpleNamespace(num_workers=2))
    monkeypatch.setattr(ring, "_own", [None] * ring.PIECES)
    needed = 2 * batch_module.pixel_bytes(64, 64)
    monkeypatch.setattr(ring, "free_shared_memory", lambda: 2 * needed)
    assert dataset.__getitems__([(0, 0), (0, 1)]).images.is_shared()
    monkeypatch.setattr(ring, "free_shared_memory", lambda: 2 * needed - 1)
    with pytest.raises(DataError, match="shared memory .* 2 workers; lower data.workers or train.batch_size"):
        dataset.__getitems__([(0, 0), (0, 1)])


def test_a_batch_is_no_longer_the_worker_s_to_change(store):
    """Workers write to the same memory again and again; batches of several sizes are kept to the end."""
    dataset = PoseDataset(store, (64, 64), augment=AugmentConfig())
    keys = [[(epoch, i % len(dataset)) for i in range(1 + epoch * 7 % 5)] for epoch in range(30)]
    loader = make_loader(dataset, keys, workers=2)
    for _ in range(2):
        kept = list(loader)
        for batch, own in zip(kept, map(dataset.__getitems__, keys), strict=True):
            assert all(torch.equal(x, y) for x, y in zip(batch[:5], own[:5])) and not batch.images.is_shared()
    workers = [worker.pid for worker in loader._iterator._workers]
    assert {(pid, piece) for pid in workers for piece in range(ring.PIECES)} <= set(ring._received)
    close_loader(loader)
    assert not any(pid in workers for pid, _ in ring._received)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at memory through /proc")
def test_workers_keep_no_memory_of_another_loader_s(store):
    """They were forked while the main process had it: validation's workers live as long as the run."""
    loaders = [make_loader(PoseDataset(store, (64, 64)), [[(0, 0)]], workers=1) for _ in range(2)]
    assert all(len(list(loader)) == 1 for loader in loaders)
    first, second = (loader._iterator._workers[0].pid for loader in loaders)
    assert f"/torch_{first}_" in Path(f"/proc/{first}/maps").read_text()
    assert f"/torch_{first}_" not in Path(f"/proc/{second}/maps").read_text()
    for loader in loaders:
        close_loader(loader)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at open files through /proc")
def test_a_worker_gives_up_the_parent_s_handle_before_it_reads(store):
    store.image(0)  # so that there is a handle to inherit
    loader = make_loader(PoseDataset(store, (64, 64)), [], workers=1)
    assert list(loader) == []
    (worker,) = multiprocessing.active_children()
    deadline = time.monotonic() + 60
    while str(store.path) in opened_by(worker.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    left = opened_by(worker.pid)
    close_loader(loader)
    assert left and str(store.path) not in left and str(store.path) in opened_by(os.getpid())


def opened_by(pid: int) -> list[str]:
    """The files that a process has open."""
    names = []
    for handle in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            names.append(os.readlink(f"/proc/{pid}/fd/{handle}"))
    return names


def test_flip_swaps_left_and_right_in_a_sample(store):
    plain = AugmentConfig(jitter_probability=0, scale_probability=0, degrees=0, shift=0, flip_probability=0)
    mirrored = AugmentConfig(jitter_probability=0, scale_probability=0, degrees=0, shift=0, flip_probability=1)
    a = PoseDataset(store, (128, 128), augment=plain)[0, 0]
    b = PoseDataset(store, (128, 128), augment=mirrored)[0, 0]
    labelled = a.joints[..., 2] > 0
    swapped = b.joints[:, COCO.flip_keypoints]
    assert np.allclose(swapped[labelled][:, 0], 127 - a.joints[labelled][:, 0], atol=1e-3)
    assert np.abs(a.image[:, ::-1].astype(int) - b.image).mean() < 3


@pytest.mark.skipif(not hasattr(signal, "alarm"), reason="signals of POSIX only")
def test_workers_outlive_signals_until_the_loader_is_closed(store):
    dataset = PoseDataset(store, (64, 64))
    loader = make_loader(dataset, [[(0, i)] for i in range(4)], workers=2)
    batches = iter(loader)
    next(batches), next(batches)  # one of each worker: both have begun
    workers = list(multiprocessing.active_children())
    for worker in workers:
        os.kill(worker.pid, signal.SIGINT)
        os.kill(worker.pid, signal.SIGTERM)
    assert len(list(batches)) == 2
    close_loader(loader)
    assert len(workers) == 2 and not any(w.is_alive() for w in workers)
