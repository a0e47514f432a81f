"""From annotations as they are to a trained network: the sequence of steps behind ``posenet train data.yaml``.

``prepare`` chooses the folder of the run, and makes stores of the annotations in its subfolder ``data``. These are made
again only if the data have changed. ``train`` then trains on them with what ``choose_experiment`` chooses, and
``conclude`` evaluates the best checkpoint. Every step logs one line.

Importing this module does not import PyTorch.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posenet.annotations.find_annotations import find_annotations
from posenet.checkpoints.folder import CheckpointFolder, run_lock
from posenet.data.build import SKELETON_FILE, StorePlan, update_stores
from posenet.data.store import Store
from posenet.errors import CheckpointError, ConfigError
from posenet.files import read_input, write_atomically
from posenet.images import require_image_folder, write_image
from posenet.inference.evaluation import evaluate
from posenet.messages import command_line, pluralize
from posenet.settings import Config, load_config
from posenet.settings.reading import DATA_KEYS, apply_override
from posenet.settings.sections import nearest_height
from posenet.skeleton import COCO
from posenet.training.inputs import RUNS_FOLDER, Experiment
from posenet.visualization.sheets import draw_label_sheet

SOURCE_FILE = "source.txt"  # file with the path of the annotation file with which the run has begun
EVALUATE_EVERY = 5
"""Epochs between two APs where the experiment computes none: the best checkpoint and the drawings come from them."""
FEW_IMAGES = 20  # an AP of fewer images depends on chance more than on the network
LOW_AP = 0.01  # below this AP, a run names what to try

PLAIN_NAME = re.compile(
    "data|dataset|annotations|result|train|val(id)?|person_keypoints.*|_annotations.*", re.IGNORECASE
)
"""What annotation files are called that are not told from others by their names: a run takes that of the folder."""

_log = logging.getLogger(__name__)


class PreparedData(NamedTuple):
    """Data that are ready for training."""

    folder: Path  # of the run
    overrides: tuple[str, ...]  # settings of the run: its folder, its data and its skeleton
    images: Path  # folder of the validation images
    annotations: Path  # their COCO keypoint file
    settings: Config  # those that were given, without an experiment those of tiny
    skeleton: Path
    warnings: tuple[str, ...]  # one line each, to be repeated beside the AP

    @property
    def is_started(self) -> bool:
        """Whether the folder contains checkpoints of the run."""
        return CheckpointFolder(self.folder).has_checkpoints()


def prepare(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    images: str | Path | None = None,
    val: str | Path | None = None,
    val_images: str | Path | None = None,
    experiment: Experiment = None,
) -> PreparedData:
    """Import, check and split annotations, draft their skeleton, and build their stores in the folder of the run.

    What is there already, and fits the data, stays as it is. The arguments are those of ``train``.

    Raises:
        CheckpointError: the folder of the run is in use, or contains a run with other data.
        ConfigError: a setting is not valid.
        DataError: the annotations or the images cannot be used.
    """
    for image_folder in (images, val_images):
        if image_folder is not None:
            require_image_folder(image_folder)
    source = Path(source)
    train_file, val_file = find_annotations(source, None if val is None else Path(val))
    settings, given = load_config(experiment or "tiny", overrides), _settings_of(overrides)
    for key in DATA_KEYS:
        if f"data.{key}" in given:
            raise ConfigError(f"data.{key} names other data than {source}; leave out one of the two")
    skeleton = given.get("model.skeleton", "")
    if not isinstance(skeleton, str) or not (skeleton or settings.model.skeleton == COCO):
        raise ConfigError(
            "with annotations, the skeleton is drafted, not that of the experiment; model.skeleton is the name of a "
            "TOML file, or coco: give --set model.skeleton=FILE.toml"
        )
    folder = Path(settings.checkpoint.path or RUNS_FOLDER / name_of_run(source))
    files = folder / "data"
    is_started = CheckpointFolder(folder).has_checkpoints()
    if is_started:
        origin = files / SOURCE_FILE
        began = Path(os.fsdecode(read_input(origin))) if origin.exists() else None
        if began != train_file.resolve():
            raise CheckpointError(
                f"{folder} already contains a run, which has begun with {began or 'stores'}, not with {source}; choose "
                "another folder with --set checkpoint.path=DIR"
            )
    elif weights := settings.train.weights:
        from posenet.checkpoints.weights import stored_config  # imports PyTorch

        stored_config(weights)
    plan = StorePlan(
        train_file=train_file,
        val_file=val_file,
        images=images,
        val_images=val_images,
        folder=files,
        skeleton=Path(skeleton or files / SKELETON_FILE),
        exif_frame=settings.data.exif_frame,
        allow_overlap=settings.data.allow_overlap,
    )
    with run_lock(folder):
        files.mkdir(exist_ok=True)
        write_atomically(files / SOURCE_FILE, os.fsencode(train_file.resolve()))
        stored_images, warnings = update_stores(plan, is_started)
    values: dict[str, object] = {
        "checkpoint.path": folder,
        "data.train": files / "train.h5",
        "data.val": files / "val.h5",
        "data.val_images": stored_images,
        "data.val_annotations": files / "val.json",
        "model.skeleton": plan.skeleton,
    }
    if not settings.train.evaluate_every and "train.evaluate_every" not in given:
        values["train.evaluate_every"] = EVALUATE_EVERY
    # A text in JSON is one in TOML, too.
    pairs = tuple(f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in values.items())
    return PreparedData(folder, pairs, stored_images, files / "val.json", settings, plan.skeleton, warnings)


def name_of_run(source: Path) -> str:
    """The name of the folder or file; that of the folder for a file called data.yaml, train.json and so on."""
    path = source.resolve()
    if path.is_dir():
        return path.name
    names = (path.stem, *(folder.name for folder in path.parents))
    return next((name for name in names if name and not PLAIN_NAME.fullmatch(name)), "run")


def _settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """The values that overrides give to settings, by their names."""
    tables: dict[str, Any] = {}
    for pair in overrides:
        apply_override(tables, pair)
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}


def show_labels(data: PreparedData, command: str) -> None:
    """Draw the labels of prepared data, as labels.jpg; log what to correct and the command that goes on."""
    sheet = data.folder / "labels.jpg"
    with Store(data.folder / "data" / "train.h5") as store:
        names = pluralize(store.skeleton.num_keypoints, "keypoint")
        drawn = draw_label_sheet(store, f"{names}; left is blue, right is orange, the rest white")
    write_image(sheet, drawn)
    _log.info("Labels: look at %s; left is blue, right is orange", sheet)
    _log.info("Skeleton: correct %s if sides, parts or names are wrong", data.skeleton)
    _log.info("Next: %s", command)


def choose_experiment(
    data: PreparedData, overrides: Sequence[str], experiment: Experiment, has_accelerator: bool
) -> tuple[Experiment, list[str]]:
    """The experiment and the overrides of a run.

    If no experiment is named, it is one for the device, with the network of ``train.weights`` if there are some; but a
    run that continues keeps its own. The height for prediction goes with the size of the training input.
    """
    from posenet.checkpoints.weights import stored_config  # imports PyTorch, which the caller has done

    pairs = [*data.overrides, *overrides]
    if data.is_started and experiment is None:
        return None, pairs
    choice = ""
    if experiment is None:
        experiment, device = ("small", "a GPU") if has_accelerator else ("tiny", "a CPU")
        choice = f", for {device}"
        if weights := data.settings.train.weights:
            network = stored_config(weights).model
            pairs = [f"model.{key}={getattr(network, key)}" for key in ("stacks", "width", "growth")] + pairs
            choice += f", with the network of {weights}"
        choice += "; --config NAME takes another one (posenet config lists them)"
    before, after = load_config(experiment, ()), load_config(experiment, pairs)
    if after.train.size != before.train.size and "inference.height" not in _settings_of(pairs):
        height = before.inference.height * after.train.size[0] / before.train.size[0]
        pairs.append(f"inference.height={nearest_height(height)}")
        choice += f"; {pairs[-1]} goes with train.input_size"
    if not data.is_started:
        _log.info("Experiment %s%s", "given as settings" if isinstance(experiment, Config) else experiment, choice)
    return experiment, pairs


def conclude(data: PreparedData, progress: bool) -> None:
    """Evaluate the best checkpoint of a run, and log what the run has made."""
    # These import PyTorch, as the run has done.
    from posenet.checkpoints.file import read_checkpoint
    from posenet.training.log import DRAWINGS_FOLDER

    folder = CheckpointFolder(data.folder)
    best = folder.best if folder.best.exists() else folder.last
    device = data.settings.train.device
    evaluation = evaluate(best, data.images, data.annotations, progress=progress, device=device)
    if evaluation is None:  # a file without people is refused before the run
        return
    ap, count = evaluation.metrics["AP"], pluralize(evaluation.images, "image")
    trained_on = "may have been" if data.settings.data.allow_overlap else "was not"
    _log.info("AP %.3f on %s that it %s trained on", ap, count, trained_on)
    words = ["--checkpoint", best, "--images", data.images, "--annotations", data.annotations]
    _log.info("Again: %s", command_line("evaluate", *words))
    for warning in data.warnings:
        _log.warning("%s", warning)
    if evaluation.images < FEW_IMAGES:
        _log.warning("An AP on %s depends on chance; give %d or more for validation (--val)", count, FEW_IMAGES)
    if ap < LOW_AP:
        _log.warning("Almost nothing is found: give more epochs (--epochs), or read posenet docs troubleshooting")
    sheet = data.folder / DRAWINGS_FOLDER / f"epoch_{read_checkpoint(best)['progress']['epoch']:04d}.jpg"
    if sheet.exists():  # of the epoch after which the checkpoint was saved
        _log.info("Annotations beside what was found: %s", sheet)
    words = ["IMAGES", "--checkpoint", best, "--output", data.folder / "drawn"]
    _log.info("Next: %s", command_line("predict", *words))
