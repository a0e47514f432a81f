"""Tiny COCO data sets and stores for tests: annotations as dictionaries, images as noise."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import torch

from posenet.annotations.outlines import decode_mask, encode_mask
from posenet.annotations.people import People, read_dataset
from posenet.data import store as store_module
from posenet.data.build import build_store
from posenet.data.dataset import Batch
from posenet.data.store import PERSON_TYPE, NewImage, Record, Store
from posenet.skeleton import COCO

HEIGHT, WIDTH = 120, 160


def person(
    number: int, image_id: int, box: tuple[float, ...] = (20, 20, 50, 60), labelled: int = 17, **changes: Any
) -> dict[str, Any]:
    """An annotation whose first ``labelled`` keypoints lie on the diagonal of its box, which is its outline. Its area
    is three quarters of that."""
    x, y, w, h = box
    keypoints = [[x + w * k / 17, y + h * k / 17, 2] if k < labelled else [0, 0, 0] for k in range(17)]
    return {
        "id": number,
        "image_id": image_id,
        "category_id": 1,
        "iscrowd": 0,
        "bbox": list(box),
        "area": 0.75 * w * h,
        "num_keypoints": labelled,
        "keypoints": [value for point in keypoints for value in point],
        "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
    } | changes


def crowd(
    number: int, image_id: int, box: tuple[int, int, int, int], size: tuple[int, int] = (HEIGHT, WIDTH), **changes: Any
) -> dict[str, Any]:
    """A crowd region that fills its box, as uncompressed run lengths."""
    x, y, w, h = box
    mask = np.zeros(size, np.uint8)
    mask[y : y + h, x : x + w] = 1
    edges = np.flatnonzero(np.diff(mask.T.ravel(), prepend=0, append=1 - mask[-1, -1]))
    counts = np.diff(edges, prepend=0).tolist()
    outline = {"size": list(size), "counts": counts}
    return person(number, image_id, box, 0, iscrowd=1, area=w * h, segmentation=outline, **changes)


def document(image_ids: Iterable[int], annotations: list[dict[str, Any]]) -> dict[str, Any]:
    """A COCO data set whose images all have the same size."""
    images = [
        {"id": number, "file_name": f"{number:012d}.jpg", "height": HEIGHT, "width": WIDTH} for number in image_ids
    ]
    category = {"id": 1, "name": "person", "keypoints": list(COCO.file_names), "skeleton": []}
    return {"images": images, "annotations": annotations, "categories": [category]}


def write_annotations(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def read_people(folder: Path, *annotations: dict[str, Any]) -> People:
    """The people of image 1, written to a file and read back."""
    path = write_annotations(folder / "people.json", document([1], list(annotations)))
    return read_dataset(path).people[1]


def box_mask(x: int, y: int, width: int, height: int) -> np.ndarray:
    """(HEIGHT, WIDTH) uint8, 1 in a box."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[y : y + height, x : x + width] = 1
    return mask


def write_images(folder: Path, content: dict[str, Any]) -> Path:
    """A noisy JPEG, another one for every id, for each image of ``content``."""
    folder.mkdir(parents=True, exist_ok=True)
    for image in content["images"]:
        pixels = np.random.default_rng(image["id"]).integers(0, 256, (image["height"], image["width"], 3), np.uint8)
        (folder / image["file_name"]).write_bytes(cv2.imencode(".jpg", pixels)[1].tobytes())
    return folder


def write_coco(root: Path, image_ids: Iterable[int] = (1, 2, 3)) -> tuple[Path, Path]:
    """Image folder and annotation file of a set with one main person in every image."""
    ids = list(image_ids)
    content = document(ids, [person(10 + number, number) for number in ids])
    return write_images(root / "images", content), write_annotations(root / "annotations.json", content)


def make_record(image_id: int, people: int = 2, height: int = 96, width: int = 128) -> Record:
    """A noisy image with random people and masks, another one for every id."""
    rng = np.random.default_rng(image_id)
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    masks = [encode_mask((rng.random((height, width)) < 0.5).astype(np.uint8)) for _ in range(2)]
    table = np.zeros(people, PERSON_TYPE)
    table["annotation_id"] = rng.integers(0, 2**62, people)
    table["box"] = 1 + rng.random((people, 4), np.float32)
    table["area"] = rng.random(people, np.float32)
    return Record(
        source=Path("memory"),
        image_id=image_id,
        file_name=f"sub/{image_id:04d}.jpg",
        height=height,
        width=width,
        orientation=1,
        image_bytes=cv2.imencode(".jpg", pixels)[1].ravel(),
        joints=rng.random((people, 18, 3), np.float32),
        person_mask=masks[0],
        mask_miss=masks[1],
        people=table,
    )


def decode_masks(record: Record) -> tuple[np.ndarray, np.ndarray]:
    """The person mask and ``mask_miss`` of a record as (H, W) uint8 of 0 and 1."""
    size = (record.height, record.width)
    return decode_mask(record.person_mask, *size), decode_mask(record.mask_miss, *size)


def write_store(path: Path, records: list[Record], **options: Any) -> Path:
    """A store in which the first two people of every record are main persons."""
    images = [NewImage(record, range(len(record.joints))[:2]) for record in records]
    store_module.write_store(path, images, sum(len(record.image_bytes) for record in records), **options)
    return path


def split_store(source: Path, folder: Path, count: int, shift: float = 0) -> list[str]:
    """Copy a store to several, with the joints of its last image moved by ``shift``; return the copies in order."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"part{number}.h5" for number in range(count)]
    with Store(source) as store:
        for number, path in enumerate(paths):
            images = []
            for row in range(store.num_images * number // count, store.num_images * (number + 1) // count):
                record = store.read_record(row)
                if row == store.num_images - 1:
                    record = record._replace(joints=record.joints + shift)
                images.append(NewImage(record, store.samples[store.samples[:, 0] == row, 1].tolist()))
            store_module.write_store(path, images, store.num_image_bytes)
    return [str(path) for path in paths]


def flip_bit(path: Path, array: str, image: int) -> None:
    """Flip one bit in the middle of what the array ``images`` or ``labels`` of a store contains of an image."""
    with h5py.File(path) as file:
        records = file["record"][()]
        starts = records["image_start" if array == "images" else "label_start"].tolist()
        end = [*starts, len(file[array])][image + 1]
        place = file[array].id.get_offset() + (starts[image] + end) // 2
    flip_bit_at(path, place)


def flip_bit_at(path: Path, place: int) -> None:
    """Flip the lowest bit of a byte of a file."""
    with open(path, "r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def build_both(coco: Path) -> dict[str, Path]:
    """The stores, train and val, of a folder that ``write_dataset`` has made."""
    found = {split: coco / f"{split}.h5" for split in ("train", "val")}
    for split, path in found.items():
        build_store(coco / f"{split}2017", coco / "annotations" / f"person_keypoints_{split}2017.json", path, workers=1)
    return found


def file_contents(folder: Path) -> dict[str, bytes]:
    """The bytes of all files in a folder and below it, by path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same_batches(a: Sequence[Batch], b: Sequence[Batch]) -> bool:
    """Whether two sequences of batches have equal tensors and faults."""
    return len(a) == len(b) and all(map(same_batch, a, b))


def same_batch(a: Batch, b: Batch) -> bool:
    same_tensors = all(torch.equal(x, y) for x, y in zip(a[:5], b[:5]))
    return same_tensors and tuple(a.faults) == tuple(b.faults)
