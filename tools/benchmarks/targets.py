"""Rendering target maps: milliseconds per image, compared with writing as many bytes."""

import argparse

import torch

from benchmarks.measuring import Table, measure, random_batch
from posenet.data.targets import TargetRenderer
from posenet.settings import Config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of this benchmark."""
    parser.add_argument("--people", type=int, nargs="+", default=[3, 5, 10, 20], metavar="N", help="people in an image")


def run(args: argparse.Namespace, config: Config, device: torch.device) -> list[Table]:
    """Time the rendering of a batch for several numbers of people."""
    batch_size = config.train.batch_size
    renderer = TargetRenderer.from_config(config).to(device)
    batches = {people: random_batch(config, device, people) for people in args.people}
    for batch in batches.values():  # the joints lie anywhere in the image: make people a third as large
        joints = batch.joints[..., :2]
        joints -= (joints - joints.mean(dim=2, keepdim=True)) * 2 / 3
    maps = renderer(batches[args.people[0]].joints, batches[args.people[0]].person_mask.float())
    tasks = {
        f"{people} people": lambda batch=batch: renderer(batch.joints, batch.person_mask.float())
        for people, batch in batches.items()
    }
    seconds = measure({"filling the maps with zeros": maps.zero_, **tasks}, args.repeats)
    table = Table(
        title=f"targets: {maps.shape[1]} maps of {maps.shape[2]} x {maps.shape[3]}, batches of {batch_size}",
        header=("task", "ms/image", "images/s"),
    )
    for name, value in seconds.items():
        table.rows.append((name, 1000 * value / batch_size, batch_size / value))
        table.numbers[f"{name.replace(' ', '_')}_ms_per_image"] = 1000 * value / batch_size
    return [table]
