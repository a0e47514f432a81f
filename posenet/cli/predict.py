"""Find people in pictures: draw them, and write their keypoints as JSON."""

from __future__ import annotations

import argparse
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posenet.cli.inference import add_predictor_options, check_outputs, make_predictor
from posenet.errors import ConfigError, DataError
from posenet.inference.draw import draw_people
from posenet.inference.evaluate import to_result
from posenet.inference.images import SUFFIXES, find_images, read_ahead, write_image
from posenet.inference.person import Person
from posenet.inference.predictor import Predictor
from posenet.system import write_atomically

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="pictures, folders, or quoted glob patterns")
    parser.add_argument("--output", metavar="DIR",
                        help="folder for the drawn pictures; those of an earlier run are replaced")
    parser.add_argument("--json", metavar="FILE", help="write all people here, as COCO results with file names")
    parser.add_argument("--min-score", type=float, default=0.25, metavar="X",
                        help="leave out people who score less, 0-1")
    parser.add_argument("--keypoint-min-score", type=float, default=0.2, metavar="X",
                        help="do not draw keypoints that score less, 0-1; the JSON holds them all")
    add_predictor_options(parser)


def run(args: argparse.Namespace) -> None:
    """Predict all pictures that can be read; one that cannot be makes the exit status 2 in the end."""
    if not (args.output or args.json):
        raise ConfigError("nothing to write: give --output DIR, --json FILE or both")
    paths = find_images(args.inputs)
    targets = _targets(paths, Path(args.output)) if args.output else {}
    check_outputs([*targets.values(), *([Path(args.json)] if args.json else [])], [*paths, Path(args.checkpoint)])
    predictor = make_predictor(args)

    results: list[dict[str, Any]] = []
    unreadable: list[Path] = []
    for path, image, people in _predict(predictor, paths):
        if image is None:
            unreadable.append(path)
            continue
        people = [person for person in people if person.score >= args.min_score]
        results += [to_result(person, _image_id(path)) | {"file_name": str(path)} for person in people]
        if args.output:
            drawn = draw_people(image, people, keypoint_min_score=args.keypoint_min_score)
            write_image(targets[path], drawn)
    if args.json:
        write_atomically(args.json, json.dumps(results).encode())
    print(f"{len(results)} people in {len(paths) - len(unreadable)} pictures")
    if unreadable:
        raise DataError(f"{len(unreadable)} of {len(paths)} pictures could not be read: "
                        + ", ".join(map(str, unreadable[:5])) + (" ..." if len(unreadable) > 5 else ""))


def _predict(predictor: Predictor, paths: Sequence[Path]) -> Iterator[tuple[Path, np.ndarray | None, list[Person]]]:
    """Every picture with its people, in order; None for one that cannot be read, which is logged."""
    pictures = zip(paths, read_ahead(paths))
    with logging_redirect_tqdm(), tqdm(total=len(paths), desc="predict", unit="image") as bar:
        while batch := list(itertools.islice(pictures, predictor.batch_size)):
            people = iter(predictor.batch([image for _, image in batch if not isinstance(image, DataError)]))
            for path, image in batch:
                if isinstance(image, DataError):
                    _log.warning("skipped: %s", image)
                    yield path, None, []
                else:
                    yield path, image, next(people)
                bar.update()


def _targets(paths: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Where each picture is drawn: under its own name, numbered where an earlier one has the same."""
    targets: dict[Path, Path] = {}
    taken: set[str] = set()
    for path in paths:
        suffix = path.suffix if path.suffix.lower() in SUFFIXES else ".png"
        names = itertools.chain([path.stem + suffix], (f"{path.stem}-{n}{suffix}" for n in itertools.count(2)))
        # Some file systems take Photo.jpg and photo.jpg for one.
        name = next(name for name in names if name.lower() not in taken)
        taken.add(name.lower())
        targets[path] = folder / name
        if name != path.name:
            _log.info("%s is drawn as %s", path, name)
    return targets


def _image_id(path: Path) -> int | str:
    """COCO names pictures by their number; others are known by their path."""
    return int(path.stem) if path.stem.isascii() and path.stem.isdecimal() else str(path)
