"""Find people in pictures: draw them, and write their keypoints as JSON."""

from __future__ import annotations

import argparse
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from posenet.cli.inference import add_predictor_options, make_predictor
from posenet.errors import ConfigError, DataError
from posenet.inference.draw import draw_people
from posenet.inference.evaluate import to_result
from posenet.inference.images import SUFFIXES, find_images, read_ahead, write_atomically, write_image

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="pictures, folders, or quoted glob patterns")
    parser.add_argument("--output", metavar="DIR",
                        help="folder for the drawn pictures; those of an earlier run are replaced")
    parser.add_argument("--json", metavar="FILE", help="write all people here, as COCO results with file names")
    parser.add_argument("--min-score", type=float, default=0.1, metavar="X",
                        help="leave out people who score less, 0-1")
    add_predictor_options(parser)


def run(args: argparse.Namespace) -> None:
    """Predict all pictures that can be read; exit status 2 if one could not."""
    if not (args.output or args.json):
        raise ConfigError("nothing to write: give --output DIR, --json FILE or both")
    paths = find_images(args.inputs)
    targets = _targets(paths, Path(args.output)) if args.output else [None] * len(paths)
    _spare(paths, [*targets, Path(args.json) if args.json else None])
    predictor = make_predictor(args)

    results: list[dict[str, Any]] = []
    failed: list[Path] = []
    count = 0
    for path, target, image, people in _predict(predictor, paths, targets):
        if image is None:
            failed.append(path)
            continue
        people = [person for person in people if person.score >= args.min_score]
        count += len(people)
        results += [to_result(person, _image_id(path)) | {"file_name": str(path)} for person in people]
        if target:
            write_image(target, draw_people(image, people))
    if args.json:
        write_atomically(args.json, json.dumps(results).encode())
    print(f"{count} people in {len(paths) - len(failed)} pictures")
    if failed:
        raise DataError(f"{len(failed)} of {len(paths)} pictures could not be used: "
                        + ", ".join(map(str, failed[:5])) + (" ..." if len(failed) > 5 else ""))
