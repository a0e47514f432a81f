"""A run goes on, or ends well, when samples are damaged and the processes that read them die."""

import itertools
import logging
import math
import multiprocessing
import os
import shutil
import signal
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from posenet.checkpoints.file import read_checkpoint
from posenet.data.batch import Batch, BatchBuffers
from posenet.data.dataset import PoseDataset
from posenet.data.loader import close_loader, make_loader
from posenet.data.sampler import TrainSampler
from posenet.data.store import reader as store_module
from posenet.data.store.reader import Store
from posenet.data.store.row_reader import RowReader
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.settings import AugmentConfig
from posenet.training.input_stream import CollectiveDataError, InputStream, RestartingLoader, UnreadableSampleBudget
from posenet.training.progress import Progress
from tests.helpers.drawn_data import flip_bit, make_record, write_store
from tests.helpers.process_groups import run_in_processes
from tests.helpers.tiny_training import CPU, tiny_trainer

SHORT = ["train.epochs=1", "train.batch_size=2"]


@pytest.fixture
def damaged(stores, tmp_path):
    """The stores, with one image and one mask of the training store damaged."""
    path = tmp_path / "damaged.h5"
    shutil.copy(stores["train"], path)
    flip_bit(path, "jpeg", 0)
    flip_bit(path, "mask_miss", 3)
    return {**stores, "train": path}


@pytest.fixture
def quick(monkeypatch):
    """Deaths of workers are noticed, and file systems asked again, soon."""
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.2,))
    monkeypatch.setattr(store_module, "RETRY_SECONDS", (0.0, 0.01, 0.02))


def restarting(loader):
    return RestartingLoader(loader, loader.batch_sampler)


def batches(path, workers=0, take=restarting):
    dataset = PoseDataset(Store(path), (64, 64), augment=AugmentConfig())
    loader = make_loader(dataset, TrainSampler(len(dataset), 2, seed=1), workers)
    try:
        return list(take(loader))
    finally:
        if workers:
            close_loader(loader)


@pytest.fixture
def give_up():
    """A test that waits for ever fails."""
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for ever"))
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Skipping(list):
    """Batches of keys, the first ``skip`` of which are left out."""

    skip = 0

    def __iter__(self):
        return itertools.islice(super().__iter__(), self.skip, None)


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a[:5], b[:5])) and list(a.faults) == list(b.faults)


def end(runtime, stores, folder, *overrides, **options):
    """Losses, final state and epoch lines of a run."""
    with tiny_trainer(runtime, stores, folder, *SHORT, *overrides, **options) as trainer:
        finished = trainer.run()
        return finished, trainer.losses, {n: t.clone() for n, t in trainer.model.network.state_dict().items()}


def test_a_damaged_sample_gives_way_to_the_next_whoever_reads_it(damaged):
    alone, shared = batches(damaged["train"]), batches(damaged["train"], workers=2)
    assert len(alone) == len(shared) and all(map(equal, alone, shared))
    faults = [fault for batch in alone for fault in batch.faults]
    assert faults and all("damaged.h5: image " in fault and "than were written" in fault for fault in faults)


def test_the_replacement_is_the_next_sound_sample(damaged):
    dataset = PoseDataset(Store(damaged["train"]), (64, 64), augment=AugmentConfig())
    bad = [i for i in range(len(dataset)) if dataset[4, i].faults]
    images = dataset.store.samples[bad, 0].tolist()
    assert set(images) == {0, 3}
    for index in bad:
        following = next(i % len(dataset) for i in (index + 1, index + 2, index + 4) if i % len(dataset) not in bad)
        assert equal_samples(dataset[4, index], load_without_substitute(dataset, (4, following)))


def load_without_substitute(dataset, key):
    (buffers,) = BatchBuffers.allocate(1, *dataset.size).per_sample()
    return dataset.load_sample(key, buffers)


def equal_samples(a, b):
    return all((x == y).all() for x, y in zip(a[:4], b[:4])) and a.image_id == b.image_id


def test_damage_in_a_stretch_is_left_behind_and_damage_everywhere_is_an_error(tmp_path):
    path = write_store(tmp_path / "long.h5", [make_record(i, 1) for i in range(20)])
    for image in range(2, 12):
        flip_bit(path, "jpeg", image)
    with Store(path) as store:
        dataset = PoseDataset(store, (64, 64))
        assert dataset[0, 2].image_id == 18 and len(dataset[0, 2].faults) == 5
    for image in (0, 1, *range(12, 20)):
        flip_bit(path, "mask_all", image)
    with Store(path) as store, pytest.raises(DataError, match="sample 2 cannot be read, nor can 5 others .*image 2 "):
        PoseDataset(store, (64, 64))[0, 2]
    for workers in (0, 1):
        with pytest.raises(DataError, match=r"\Asample \d+ cannot be read, nor can 5 others .* rebuild the store\Z"):
            batches(path, workers)


def test_a_run_counts_names_and_resumes_with_replacements(damaged, tmp_path, caplog):
    allowed = "data.max_unreadable=0.9"
    with caplog.at_level(logging.WARNING):
        whole = end(Runtime(CPU), damaged, tmp_path / "whole", allowed)
    assert "image 1 (000000000001.jpg) has another image" in caplog.text
    assert "samples replaced by others: " in caplog.text
    assert not end(Runtime(CPU), damaged, tmp_path / "cut", allowed, steps=2)[0]
    last = tmp_path / "cut" / "last.pth"
    assert read_checkpoint(last)["progress"]["replaced"] > 0
    rest = end(Runtime(CPU), damaged, tmp_path / "cut", allowed, resume=last)
    assert rest[1] == whole[1][2:]
    assert all(torch.equal(rest[2][n], whole[2][n]) for n in whole[2])


def test_the_next_epoch_s_samples_are_made_while_this_one_is_validated(stores, tmp_path):
    under_way = []

    def evaluate(*_):
        iterator = trainer.input.loader.loader._iterator
        under_way.append(iterator._send_idx - iterator._rcvd_idx)
        return {"AP": 0.0}

    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *SHORT, "train.epochs=3", "data.workers=1") as trainer:
        trainer.evaluate = evaluate
        assert trainer.run()
    assert min(under_way[:2]) > 0 and under_way[2] == 0


def test_a_run_that_was_closed_goes_on_with_new_workers(stores, tmp_path):
    overrides = [*SHORT, "train.epochs=2", "data.workers=1"]
    whole = end(Runtime(CPU), stores, tmp_path / "whole", *overrides)
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *overrides) as trainer:
        trainer.evaluate = lambda *_: trainer.close() or {"AP": 0.0}
        assert trainer.run() and trainer.losses == whole[1]


def test_too_many_replacements_end_the_run_with_a_checkpoint(damaged, tmp_path):
    with tiny_trainer(Runtime(CPU), damaged, tmp_path / "run", *SHORT, "data.max_unreadable=0.0") as trainer:
        with pytest.raises(
            CollectiveDataError, match="more than 0 of .* data.max_unreadable allows; the latest: .*damaged.h5"
        ):
            trainer.run()
        done = trainer.progress.total_steps
        assert read_checkpoint(trainer.folder.last)["progress"]["total_steps"] == done == len(trainer.losses)


def test_an_epoch_without_steps_left_leaves_no_workers(stores, tmp_path):
    """As where a run is resumed that was stopped while it validated."""
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *SHORT, "data.workers=1") as trainer:
        trainer.progress.step = trainer.input.steps_per_epoch
        assert trainer.train_one_epoch() and not multiprocessing.active_children()


def test_validation_counts_as_well(stores, tmp_path):
    path = tmp_path / "val.h5"
    shutil.copy(stores["val"], path)
    flip_bit(path, "jpeg", 0)
    for share, message in ((0.9, None), (0.0, "more than 0 of")):
        with tiny_trainer(
            Runtime(CPU), stores | {"val": path}, tmp_path / f"run{share}", *SHORT, f"data.max_unreadable={share}"
        ) as trainer:
            if message is None:
                assert math.isfinite(trainer.validate())
            else:
                with pytest.raises(CollectiveDataError, match=message):
                    trainer.run()
                assert read_checkpoint(trainer.folder.last)["progress"]["step"] == trainer.input.steps_per_epoch


def test_the_share_is_rounded_up_to_whole_samples():
    budget = UnreadableSampleBudget(num_samples=6, max_share=0.01)
    budget.spend(["one"])
    with pytest.raises(CollectiveDataError, match="more than 1 of 6"):
        budget.spend(["two"])
    assert budget.count == 1


def test_a_file_system_that_fails_for_a_moment_changes_nothing(stores, monkeypatch, quick):
    expected, read, calls = batches(stores["train"]), RowReader.read_bytes, []

    def failing(self, start, stop):
        calls.append(start)
        if len(calls) % 7 in (1, 2):
            raise OSError(5, "Input/output error")
        return read(self, start, stop)

    monkeypatch.setattr(RowReader, "read_bytes", failing)
    assert all(map(equal, batches(stores["train"]), expected))
    assert len(calls) > 5 and not any(batch.faults for batch in expected)


def test_a_file_system_that_is_gone_ends_the_run_with_a_checkpoint(stores, tmp_path, quick):
    path = tmp_path / "train.h5"
    shutil.copy(stores["train"], path)
    with tiny_trainer(Runtime(CPU), stores | {"train": path}, tmp_path / "run", *SHORT) as trainer:
        path.unlink()
        with pytest.raises(CollectiveDataError, match="train.h5 does not exist"):
            trainer.run()
        assert trainer.folder.last.exists()


@pytest.mark.parametrize("share", [0.3, 0.8, 0.97])
def test_a_store_cut_short_under_the_run_gives_no_wrong_sample(stores, tmp_path, quick, share):
    path = tmp_path / "cut.h5"
    shutil.copy(stores["train"], path)
    store = Store(path)
    dataset = PoseDataset(store, (64, 64))
    expected = [dataset[0, i] for i in range(len(dataset))]
    os.truncate(path, int(path.stat().st_size * share))
    for index, sample in enumerate(expected):
        try:
            found = load_without_substitute(dataset, (0, index))
        except DataError:
            continue
        assert equal_samples(found, sample)


def kill_one(loader):
    """The loader's batches; a worker is killed after the first."""
    for number, batch in enumerate(restarting(loader)):
        yield batch
        if number == 0:
            os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX only")
class TestDeadWorkers:
    def test_a_killed_worker_changes_nothing(self, stores, caplog, quick):
        expected = batches(stores["train"])
        with caplog.at_level(logging.WARNING):
            found = batches(stores["train"], workers=2, take=kill_one)
        assert len(found) == len(expected) and all(map(equal, found, expected))
        assert "a data worker was ended by SIGKILL" in caplog.text
        assert not multiprocessing.active_children()

    def test_a_run_whose_workers_are_killed_ends_as_if_they_were_not(self, stores, tmp_path, quick):
        whole = end(Runtime(CPU), stores, tmp_path / "whole")
        with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *SHORT, "data.workers=1") as trainer:
            update, pids = trainer.train_step, []

            def kill_and_go_on(group):
                pids.append(trainer.input.loader.loader._iterator._workers[0].pid)
                os.kill(pids[-1], signal.SIGKILL)
                return update(group)

            trainer.train_step = kill_and_go_on
            assert trainer.run() and trainer.losses == whole[1] and len(set(pids)) > 1

    def test_a_worker_killed_while_nobody_reads_leaves_no_half_message(self, stores, quick, give_up):
        with Store(stores["train"]) as store:
            keys = [(0, 0)] * 250
            loader = make_loader(PoseDataset(store, (64, 64)), Skipping([keys] * 6), 1)
            for number, batch in enumerate(restarting(loader)):
                if number == 1:
                    time.sleep(1)  # the worker fills the pipe meanwhile
                    os.kill(loader._iterator._workers[0].pid, signal.SIGKILL)
            assert number == 5 and batch.joints.nbytes > 2**16 and equal(batch, loader.dataset.__getitems__(keys))
            close_loader(loader)

    def test_workers_that_always_die_end_the_run_with_a_checkpoint(self, stores, tmp_path, quick, monkeypatch):
        monkeypatch.setattr(PoseDataset, "read_masks_and_joints", lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
        with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", *SHORT, "data.workers=1") as trainer:
            with pytest.raises(
                CollectiveDataError, match="died 3 times .* the last was ended by SIGSEGV; .*data.workers"
            ):
                trainer.run()
            assert trainer.folder.last.exists()


def _fail_on_one(runtime, stores, folder, where):
    with tiny_trainer(runtime, stores, folder, *SHORT) as trainer:
        if runtime.rank == 1 and where == "train":
            dataset = trainer.input.loader.loader.dataset
            load_batch = dataset.__getitems__
            loaded = []

            def fail_on_the_third(keys):
                loaded.append(keys)
                if len(loaded) == 3:
                    raise DataError("the disk of rank 1 is gone")
                return load_batch(keys)

            dataset.__getitems__ = fail_on_the_third
        if where == "evaluate":
            trainer.evaluate = lambda *_: {"AP": 0.0}
        try:
            trainer.run()
        except DataError as error:
            return type(error).__name__, str(error), trainer.progress.total_steps
        return None


def test_all_processes_end_together_and_save_where_one_cannot_read(stores, tmp_path):
    folder = tmp_path / "run"
    said = run_in_processes(2, tmp_path / "results", lambda runtime: _fail_on_one(runtime, stores, folder, "train"))
    assert said == [("CollectiveDataError", "the disk of rank 1 is gone", 2)] * 2
    assert read_checkpoint(folder / "last.pth")["progress"]["total_steps"] == 2


def _train_damaged(runtime, stores, folder, share):
    with tiny_trainer(
        runtime,
        stores,
        folder,
        "train.epochs=1",
        "train.batch_size=1",
        "train.input_size=128",
        f"data.max_unreadable={share}",
    ) as trainer:
        try:
            return trainer.run(), trainer.progress.total_steps
        except CollectiveDataError as error:
            return str(error), trainer.folder.last.exists() or runtime.rank


def test_replacements_are_counted_over_all_processes(damaged, tmp_path):
    said = run_in_processes(
        2,
        tmp_path / "results",
        lambda runtime: [_train_damaged(runtime, damaged, tmp_path / str(share), share) for share in (0.9, 0.0)],
    )
    kept, ended = said[0]
    assert said[0] == said[1] and kept[0] is True and "more than 0 of" in ended[0] and ended[1]


def collate_keys(keys):
    """A batch whose image ids are the indices of its keys, and whose images have four pixels."""
    images = torch.zeros(len(keys), 2, 2, 3, dtype=torch.uint8)
    empty = torch.zeros(len(keys), 0)
    return Batch(images, empty, empty, empty, torch.tensor([index for _, index in keys]))


class Keys(Dataset):
    """A data set whose samples are their keys."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, key):
        return key


class ExitingDataset(Keys):
    """A data set whose workers exit with a status instead of loading a sample."""

    def __init__(self, length, status):
        super().__init__(length)
        self.status = status

    def __getitem__(self, key):
        os._exit(self.status)


def stream_of_keys(length, accumulate=1, epochs=3, runtime=None):
    """A stream of batches of two samples, and the list to which it appends every (epoch, step) it is positioned at."""
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    loader = DataLoader(Keys(length), batch_sampler=sampler, collate_fn=collate_keys)
    positions = []
    start = sampler.start
    sampler.start = lambda epoch, step, epochs: positions.append((epoch, step)) or start(epoch, step, epochs)
    stream = InputStream(
        loader, sampler, runtime or Runtime(CPU), accumulate=accumulate, epochs=epochs, max_unreadable=0.0
    )
    return stream, positions


def image_ids(stream, progress):
    """The image ids of each remaining step of an epoch."""
    return [[batch.image_ids.tolist() for batch in batches] for batches in stream.steps(progress)]


def expected_image_ids(length, accumulate, epoch):
    sampler = TrainSampler(length, 2, seed=0, batches_per_step=accumulate)
    sampler.start(epoch)
    batches = [[index for _, index in keys] for keys in sampler]
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_one_iteration_of_the_loader_covers_all_epochs(accumulate):
    stream, positions = stream_of_keys(700, accumulate)
    for epoch in range(3):
        assert image_ids(stream, Progress(epoch=epoch)) == expected_image_ids(700, accumulate, epoch)
    assert positions == [(0, 0)]


def test_the_stream_continues_where_the_progress_is():
    stream, positions = stream_of_keys(20)
    assert image_ids(stream, Progress(epoch=1, step=7)) == expected_image_ids(20, 1, epoch=1)[7:]
    assert image_ids(stream, Progress(epoch=0, step=2)) == expected_image_ids(20, 1, epoch=0)[2:]
    assert image_ids(stream, Progress(epoch=1)) == expected_image_ids(20, 1, epoch=1)
    stream.close()
    assert image_ids(stream, Progress(epoch=2)) == expected_image_ids(20, 1, epoch=2)
    assert positions == [(1, 7), (0, 2), (2, 0)]


def test_samples_are_counted_over_all_processes():
    runtime = Runtime(CPU)
    runtime.world_size = 4
    stream, _ = stream_of_keys(20, accumulate=2, runtime=runtime)
    steps = stream.steps(Progress())
    next(steps), next(steps)
    assert stream.meter.samples == 2 * 2 * 2 * 4
    assert 0 < stream.meter.seconds_waited < 10


def test_an_interrupted_iteration_leaves_the_sampler_complete():
    sampler = TrainSampler(20, 2, seed=0)
    loader = DataLoader(Keys(20), batch_sampler=sampler, collate_fn=collate_keys)
    iterator = iter(RestartingLoader(loader, sampler))
    next(iterator), next(iterator)
    iterator.close()
    assert len(list(sampler)) == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a worker")
@pytest.mark.parametrize("status", [0, 3])
def test_a_worker_that_exits_is_named_with_its_status(quick, caplog, status):
    sampler = TrainSampler(20, 2, seed=0)
    options = {"num_workers": 1, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(ExitingDataset(20, status), batch_sampler=sampler, collate_fn=collate_keys, **options)
    with pytest.raises(DataError, match=f"died 3 times without giving a batch, the last ended with status {status};"):
        list(RestartingLoader(loader, sampler))
    assert caplog.text.count(f"a data worker ended with status {status}; the workers are restarted") == 2


def test_the_log_names_ten_unreadable_samples_of_a_step_and_counts_all(caplog):
    budget = UnreadableSampleBudget(num_samples=100, max_share=0.5)
    with caplog.at_level(logging.WARNING):
        budget.spend([f"sample {number} is damaged" for number in range(12)])
        budget.spend([])
    named = [record.getMessage() for record in caplog.records]
    assert named[:-1] == [f"WARNING: sample {number} is damaged" for number in range(10)]
    assert named[-1] == "WARNING: samples replaced by others: 12, so far in this epoch 12 of at most 50"


def test_the_limit_of_unreadable_samples_may_be_reached():
    budget = UnreadableSampleBudget(num_samples=10, max_share=0.3, count=1)
    budget.spend(["one", "two"])
    assert budget.count == budget.limit == 3
    with pytest.raises(CollectiveDataError, match="more than 3 of 10 .*; the latest: three"):
        budget.spend(["three"])
