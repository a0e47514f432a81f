"""The settings and the folder of a run, and what is refused before it starts.

An *experiment* is what a user gives: the name or path of a TOML file, a ``Config``, or None for the defaults. Importing
this module does not import PyTorch, so that the command line answers a mistyped setting or a missing file at once.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posenet.checkpoints.named import find_weights
from posenet.data.store_list import require_store_files
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.settings import Config, load_config
from posenet.settings.reading import named_experiment

RUNS_FOLDER = Path("checkpoints")
"""Parent of the default folder of a run."""
PLAIN_NAME = re.compile(
    "data|dataset|annotations|result|train|val(id)?|person_keypoints.*|_annotations.*", re.IGNORECASE
)
"""What annotation files are called that are not told from others by their names: a run takes that of the folder."""

Experiment = Config | str | Path | None
"""See above."""


def check_before_start(experiment: Experiment, overrides: Sequence[str]) -> None:
    """Refuse, without PyTorch, a new run with wrong settings or missing files; ``train`` itself checks more.

    Raises:
        ConfigError: the settings are not valid, or name no data.
        DataError: a store is missing.
        CheckpointError: weights are missing.
    """
    config = config_of_new_run(experiment, overrides)
    try:
        require_data(config)
    except DataError as error:
        name = named_experiment(experiment)
        if name and load_config(name).data.train == config.data.train:
            how = f"the first lines of posenet config {name} say how"
            raise DataError(f"{error}; {how}, or name your own with data.train=FILE.h5") from error
        raise
    for path in filter(None, (config.train.weights, config.train.teacher)):
        require_weights_to_train(path)


def require_weights_to_train(name: str) -> None:
    """``CheckpointError`` unless a path or a name means weights that a training can begin with or learn from."""
    if Path(name).suffix.lower() == ".onnx":
        raise CheckpointError(
            f"{name} is an exported file, which cannot be trained; give the checkpoint that it was exported from"
        )
    find_weights(name)


def require_data(config: Config) -> None:
    """``ConfigError`` if ``data.train`` is not set; ``DataError`` if a file of it or of ``data.val`` is missing."""
    if not config.data.train:
        raise ConfigError(
            "data.train is not set; give annotations, as in posenet train data.yaml, or set a store that posenet "
            "build-hdf5 has built, in the experiment file or with data.train=FILE.h5"
        )
    require_store_files(config.data.train)
    require_store_files(config.data.val)


def folder_of_run(experiment: Experiment, overrides: Sequence[str], resume: bool | str | Path) -> Path:
    """The folder of a run: where it is set, else that of the checkpoint to resume, else one named after the experiment.

    It is known before the checkpoint is read, so that the folder can be locked first.
    """
    if isinstance(resume, bool):
        return Path(config_of_new_run(experiment, overrides).checkpoint.path)
    # Other overrides may be valid only for the settings in the checkpoint.
    paths = [pair for pair in overrides if pair.partition("=")[0].strip() == "checkpoint.path"]
    if path := load_config(experiment, paths).checkpoint.path:
        return Path(path)
    return Path(resume) if Path(resume).is_dir() else Path(resume).parent


def name_of_run(source: Path) -> str:
    """The name of the folder or file; that of the folder for a file called data.yaml, train.json and so on."""
    path = source.resolve()
    if path.is_dir():
        return path.name
    names = (path.stem, *(folder.name for folder in path.parents))
    return next((name for name in names if name and not PLAIN_NAME.fullmatch(name)), "run")


def config_of_new_run(experiment: Experiment, overrides: Sequence[str]) -> Config:
    """The settings, with a folder."""
    config = load_config(experiment, overrides)
    if not config.checkpoint.path:
        name = Path(experiment).stem if isinstance(experiment, (str, Path)) else "run"
        config = with_settings(config, "checkpoint", path=str(RUNS_FOLDER / name))
    return config


def with_settings(config: Config, section: str, **values: Any) -> Config:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})
