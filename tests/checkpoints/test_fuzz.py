"""Mutated input files: each is used correctly or refused by one clean line, in bounded time and memory.

Every input is a function of its number alone. ``make torture`` tries thousands, the other tests a few of them.
"""

from __future__ import annotations

import io
import json
import sys
import tomllib
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from posenet.annotations.coco_dataset import read_annotations
from posenet.annotations.main_persons import select_main_persons
from posenet.annotations.masks import person_masks
from posenet.annotations.split import read_split
from posenet.checkpoints.contents import config_of_checkpoint, require_fitting_weights
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import load_model
from posenet.data.dataset import PoseDataset
from posenet.data.store.reader import Store
from posenet.data.store.schema import BYTE_ARRAYS, array_specs, fingerprint
from posenet.devices.runtime import Runtime
from posenet.errors import DataError
from posenet.inference.evaluation import compute_coco_metrics
from posenet.settings import Config, config_from_dict, config_to_dict, load_config
from tests.helpers.drawn_data import document, person
from tests.helpers.malformed_inputs import ODD, Findings, mutate_bytes, mutate_tree, try_all
from tests.helpers.tiny_training import CPU, TINY_OVERRIDES, tiny_trainer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are limited as on Linux")

SHORT, LONG = 24, 2000


def check(findings: Findings, name: str, record) -> None:
    """Fail on the faults; show the counts in a torture run."""
    record(name, str(findings))
    sys.__stdout__.write(f"\n{name}: {findings}\n")
    worst = "\n".join(f"input {number}: {text}" for number, text in list(findings.faults.items())[:5])
    assert not findings.faults, f"{len(findings.faults)} faults\n{worst}"
    assert findings.counts["refused"]


@pytest.fixture(params=[SHORT, pytest.param(LONG, marks=pytest.mark.torture)], ids=["short", "long"])
def count(request):
    return request.param


# Annotations


def coco_bytes(number: int) -> bytes:
    """Four people and a crowd on three images, mutated."""
    rng = np.random.default_rng((1, number))
    people = [person(i, 1 + i % 3, box=(10 + 5 * i, 20, 50, 60)) for i in range(4)]
    people[1]["segmentation"] = {"size": [120, 160], "counts": "PPo02N2M2N"}
    people.append(
        person(9, 2, labelled=0, iscrowd=1, segmentation={"size": [120, 160], "counts": [100, 50, 120 * 160 - 150]})
    )
    tree = document([1, 2, 3], people)
    if number % 3 == 0:
        return mutate_bytes(rng, json.dumps(tree).encode())
    text = json.dumps(mutate_tree(rng, tree))
    return mutate_bytes(rng, text.encode()) if number % 3 == 1 else text.encode()


def test_annotations(tmp_path, count, record_property):
    path = tmp_path / "annotations.json"
    results = [{"image_id": 1, "category_id": 1, "keypoints": [30.0, 40.0, 1.0] * 17, "score": 0.5}]

    def build(number: int) -> None:
        path.write_bytes(coco_bytes(number))
        dataset = read_annotations(path)
        for image in dataset.images:
            people = dataset.people[image.id]
            select_main_persons(people)
            if image.height * image.width <= 2**22:
                assert all(
                    m.shape == (image.height, image.width) for m in person_masks(people, image.height, image.width)
                )

    def evaluate(number: int) -> None:
        path.write_bytes(coco_bytes(number))
        split = read_split(path)
        if split.annotated and any(image.id == 1 for image in split.images):
            compute_coco_metrics([result | {"category_id": split.category} for result in results], split)

    check(try_all(count, build), "annotations to build", record_property)
    check(try_all(count, evaluate), "annotations to evaluate", record_property)


# Stores


def structure(path: Path) -> np.ndarray:
    """Places of all bytes outside the arrays' data."""
    free = np.ones(path.stat().st_size, bool)
    with h5py.File(path) as file:
        for name in file:
            if (offset := file[name].id.get_offset()) is not None:
                free[offset : offset + file[name].nbytes] = False
    return np.flatnonzero(free)


def content(file: h5py.File, name: str) -> np.ndarray:
    """An array's values; zeros where a mutation has made it something else."""
    return np.atleast_1d(file[name][()]) if isinstance(file.get(name, getlink=True), h5py.HardLink) else np.zeros(3)


def mutate_store(rng: np.random.Generator, path: Path) -> None:
    """Change arrays and attributes through the library; half the time with a fingerprint that fits again."""
    with h5py.File(path, "r+") as file:
        for number in range(int(rng.integers(1, 4))):
            name = str(rng.choice([*array_specs(18), *BYTE_ARRAYS]))
            kind, values = int(rng.integers(10)), content(file, name)
            if kind <= 3 and values.size and values.dtype.kind != "S":
                place = tuple(int(rng.integers(side)) for side in values.shape)
                values[place] = np.array(rng.choice([0, 1, -1, 2**31 - 1, int(rng.integers(2**31))])).astype(
                    values.dtype
                )
            elif kind == 4:
                values = np.resize(values, (int(rng.integers(0, 2000)), *values.shape[1:]))
            elif kind == 5:
                values = values.astype(rng.choice(["<f4", "<f8", "<i2", ">i8", "u1"])) if name != "file_name" else "x"
            elif kind == 6 and values.dtype.kind in "fiu":
                values = values[::-1].copy() if rng.random() < 0.5 else np.roll(values, 1, 0)
            elif kind == 7:
                values = h5py.SoftLink("/jpeg") if rng.random() < 0.5 else h5py.ExternalLink("other.h5", "jpeg")
            elif kind == 8:
                key = str(rng.choice(list(file.attrs)))
                odd = [
                    value
                    for value in ODD
                    if isinstance(value, (int, float, str))
                    and "\0" not in str(value)
                    and "\ud800" not in str(value)
                    and not (isinstance(value, int) and abs(value) >= 2**63)
                ]
                value = odd[int(rng.integers(len(odd)))]
                file.attrs[key] = np.bytes_(value.encode() or b"x") if isinstance(value, str) and number % 2 else value
                continue
            if name in file:
                del file[name]
            if kind < 9:
                file[name] = values
        if rng.random() < 0.5 and all(isinstance(file.get(n, getlink=True), h5py.HardLink) for n in array_specs(18)):
            file.attrs["fingerprint"] = np.bytes_(fingerprint({n: file[n][()] for n in array_specs(18)}))


def test_stores(stores, tmp_path, count, record_property):
    sound, path = stores["train"].read_bytes(), tmp_path / "mutated.h5"
    places = structure(stores["train"])
    with Store(stores["train"]) as store:
        expected = [store.read_record(row) for row in range(store.num_images)]

    def read_all(exact: bool) -> None:
        with Store(path) as store:
            good = 0
            for row in range(store.num_images):
                try:
                    record = store.read_record(row)
                    picture, both = record.decode_image(), record.decode_masks()
                except DataError:
                    continue
                good += 1
                if exact:
                    assert record.image_bytes.tobytes() == expected[row].image_bytes.tobytes()
                    assert record.mask_miss_rle == expected[row].mask_miss_rle
                    assert (record.joints == expected[row].joints).all()
                assert picture.shape[:2] == both[0].shape == both[1].shape == (record.height, record.width)
            PoseDataset(store, (64, 64))[0, 0]
            assert good or not exact

    def of_bytes(number: int) -> None:
        rng = np.random.default_rng((2, number))
        path.write_bytes(mutate_bytes(rng, sound, places if number % 2 else ()))
        read_all(exact=True)

    def of_arrays(number: int) -> None:
        path.write_bytes(sound)
        mutate_store(np.random.default_rng((3, number)), path)
        read_all(exact=False)

    check(try_all(count, of_bytes), "bytes of a store", record_property)
    check(try_all(count, of_arrays), "arrays of a store", record_property)


# Checkpoints


def rezipped(rng: np.random.Generator, data: bytes) -> bytes:
    """The archive anew, its checksums fitting, with one entry mutated."""
    source, result = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    names = source.namelist()
    chosen = next(n for n in names if n.endswith("data.pkl")) if rng.random() < 0.8 else str(rng.choice(names))
    with zipfile.ZipFile(result, "w") as target:
        for name in names:
            content = source.read(name)
            target.writestr(name, mutate_bytes(rng, content) if name == chosen else content)
    return result.getvalue()


def test_checkpoints(stores, tmp_path, count, record_property):
    with tiny_trainer(Runtime(CPU), stores, tmp_path / "run", "train.batch_size=2", steps=1) as trainer:
        trainer.run()
        sound_path, path = trainer.folder.last, tmp_path / "mutated.pth"
        sound, state = sound_path.read_bytes(), read_checkpoint(sound_path)
        legacy = tmp_path / "legacy.pth"
        torch.save(state, legacy, _use_new_zipfile_serialization=False)
        old = legacy.read_bytes()

        def use(number: int, exact: bool) -> None:
            found = read_checkpoint(path)
            if exact:
                assert all(torch.equal(found["model"][n], state["model"][n]) for n in state["model"])
            if number % 5 == 0:
                load_model(path)
            require_fitting_weights(config_of_checkpoint(found, path) or Config(), found, path)
            trainer.load_state_dict(found, str(path))
            next(trainer.input.steps(trainer.progress), None)  # none are left at the end of an epoch

        def of_bytes(number: int) -> None:
            path.write_bytes(mutate_bytes(np.random.default_rng((4, number)), sound))
            use(number, exact=True)

        def of_content(number: int) -> None:
            rng = np.random.default_rng((5, number))
            if number % 4 == 0:
                path.write_bytes(rezipped(rng, sound))
            elif number % 4 == 1:
                path.write_bytes(mutate_bytes(rng, old, range(4096) if rng.random() < 0.8 else ()))
            else:
                torch.save(mutate_tree(rng, state, (*ODD, torch.zeros(2), torch.full((3,), float("nan")))), path)
            use(number, exact=False)

        check(try_all(count, of_bytes), "bytes of a checkpoint", record_property)
        # One of these takes as long as ten of the others: most are loaded.
        check(try_all(max(8, count // 4), of_content), "content of a checkpoint", record_property)


# Configuration


def toml(tree: dict) -> str:
    def value(x: object) -> str:
        if isinstance(x, str):
            return json.dumps(x)
        if isinstance(x, (list, tuple)):
            return f"[{', '.join(map(value, x))}]"
        if isinstance(x, dict):
            return "{" + ", ".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in x.items()) + "}"
        return '""' if x is None else str(x).lower()

    return "\n".join(f"{json.dumps(str(key))} = {value(table)}" for key, table in tree.items())


def test_configurations(tmp_path, count, record_property):
    tables, path = config_to_dict(load_config(None, TINY_OVERRIDES)), tmp_path / "mutated.toml"
    assert tomllib.loads(toml(tables))

    def load(number: int) -> None:
        rng = np.random.default_rng((6, number))
        plain = json.loads(json.dumps(tables))
        text = toml(plain if number % 3 == 0 else mutate_tree(rng, plain) or {}).encode(errors="replace")
        path.write_bytes(text if number % 3 == 2 else mutate_bytes(rng, text))
        config = load_config(path, ["train.seed=1"])
        assert load_config(None, base=config) == config
        assert config_from_dict(config_to_dict(config)) == config

    check(try_all(count, load), "configurations", record_property)
