"""Decoding maps that are rendered from annotations: milliseconds per image, and the AP of the people found."""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from benchmarks.degraded_maps import degraded_maps
from benchmarks.measuring import Table, measure
from posenet.annotations.coco import CocoImage
from posenet.annotations.people import People, read_dataset, read_split
from posenet.cli.options import positive_int
from posenet.data.targets import TargetRenderer
from posenet.inference.averaging import Letterbox
from posenet.inference.decoder.decode import decode
from posenet.inference.evaluation import compute_coco_metrics
from posenet.settings import MAP_STRIDE, Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument(
        "--annotations", type=Path, required=True, metavar="JSON", help="COCO keypoint annotations; no images are read"
    )
    parser.add_argument("--limit", type=positive_int, metavar="N", help="only the first N images")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the degraded maps; 0 by default")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Decode perfect maps, and maps that are degraded like those of an imperfect network."""
    table = Table("", ("maps", "AP", "AP without estimates", "AR", "ms/image", "images/s", "slowest ms"))
    for kind, seed in (("perfect", None), ("degraded", args.seed)):
        numbers = measure_decoder(args, config, seed)
        ms = numbers["ms_per_image"]
        accuracy = (numbers["ap"], numbers["ap_without_estimates"], numbers["ar"])
        table.rows.append((kind, *accuracy, ms, 1000 / ms, numbers["slowest_ms"]))
        table.numbers |= {f"{kind}_{name}": value for name, value in numbers.items()}
        table.title = f"decode: maps of {numbers['images']} images, {config.inference.height} pixels high"
    return [table]


def measure_decoder(args: argparse.Namespace, config: Config, seed: int | None) -> dict[str, Any]:
    """Speed and accuracy for maps that are degraded with random numbers from ``seed``; None leaves them perfect."""
    skeleton = config.model.skeleton
    dataset = read_dataset(args.annotations, skeleton)
    images = dataset.images[: args.limit]
    split = read_split(args.annotations, [image.id for image in images], skeleton)
    renderer = TargetRenderer.from_config(config)
    seconds = []
    results = []
    found = []  # the same with missing keypoints at (0, 0)
    for image in tqdm(images, "decode", leave=False):
        size = (image.height, image.width)
        letterbox = Letterbox.fit(size, config.inference)
        maps = render_maps(dataset.people[image.id], image, letterbox, renderer, seed)
        task = partial(decode, maps, keypoint_threshold=config.inference.keypoint_threshold, skeleton=skeleton)
        seconds.append(measure({"decode": task}, args.repeats)["decode"])
        for person in letterbox.map_back(task(), size):
            results.append(person.to_coco_result(image.id, split.category, fill_missing=True))
            found.append(person.to_coco_result(image.id, split.category))
    metrics = compute_coco_metrics(results, split, skeleton).metrics
    return {
        "ap": metrics["AP"],
        "ap_without_estimates": compute_coco_metrics(found, split, skeleton).metrics["AP"],
        "ar": metrics["AR"],
        "ms_per_image": 1000 * sum(seconds) / len(seconds),
        "slowest_ms": 1000 * max(seconds),
        "images": len(images),
    }


def render_maps(
    people: People, image: CocoImage, letterbox: Letterbox, renderer: TargetRenderer, seed: int | None
) -> np.ndarray:
    """(C, h, w) target maps of a resized image, without crowds; degraded if ``seed`` is given.

    The decoder does not need the person mask; it stays empty.
    """
    zoom = np.array(letterbox.resized[::-1]) / (image.width, image.height)
    joints = people.keypoints[people.is_labelled].astype(np.float32)
    joints[..., :2] = (joints[..., :2] + 0.5) * zoom - 0.5
    size = (letterbox.padded[0] // MAP_STRIDE, letterbox.padded[1] // MAP_STRIDE)
    if seed is None:
        maps = renderer(torch.from_numpy(joints)[None], torch.zeros(1, *size))[0].numpy()
    else:
        maps = degraded_maps(joints, size, renderer, np.random.default_rng((seed, abs(image.id))))
    rows, columns = letterbox.decoded_cells
    return np.ascontiguousarray(maps[:, :rows, :columns])
