"""The settings and the folder of a run, and what is refused before it starts.

Importing this module does not import PyTorch, so that the command line answers a mistyped setting or a missing file at
once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from posenet.checkpoints.file import require_checkpoint_file
from posenet.checkpoints.folder import CheckpointFolder, refuse_run_in_use
from posenet.checkpoints.named import find_weights
from posenet.data.store import require_store_files
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.settings import Config, OptimConfig, load_config
from posenet.settings.experiments import shipped_experiment

RUNS_FOLDER = Path("checkpoints")
"""Parent of the default folder of a run."""


def check_before_start(
    config: Config | str | Path | None, overrides: Sequence[str], resume: bool | str | Path, restarted: bool = False
) -> None:
    """Refuse what can be refused without PyTorch: wrong settings, missing files, and a folder that is in use.

    The arguments are those of ``train``, which itself checks more.

    Raises:
        CheckpointError: the folder is in use or contains another run, or a checkpoint is missing.
        ConfigError: the settings are not valid, or name no data.
        DataError: a store is missing.
    """
    folder = CheckpointFolder(folder_of_run(config, overrides, resume))
    refuse_run_in_use(folder.path)
    # A run that continues has the settings in its checkpoint.
    if folder.has_checkpoints() and (restarted or resume is True):
        return
    if not isinstance(resume, bool):
        if not Path(resume).is_dir():
            require_checkpoint_file(Path(resume))
        return
    if folder.has_checkpoints():
        raise another_run_error(folder.path)
    settings = settings_of_new_run(config, overrides)
    try:
        require_data(settings)
    except DataError as error:
        experiment = shipped_experiment(config)
        if experiment and load_config(experiment).data.train == settings.data.train:
            how = f"the first lines of posenet config {experiment} say how"
            raise DataError(f"{error}; {how}, or name your own with --set data.train=FILE.h5") from error
        raise
    for path in (settings.train.weights, settings.train.teacher):
        if path:
            find_weights(path)


def require_data(settings: Config) -> None:
    """``ConfigError`` if ``data.train`` is not set; ``DataError`` if a file of it or of ``data.val`` is missing."""
    if not settings.data.train:
        raise ConfigError(
            "data.train is not set; give annotations, as in posenet train data.yaml, or set a store that posenet "
            "build-hdf5 has built, in the experiment file or with --set data.train=FILE.h5"
        )
    require_store_files(settings.data.train)
    require_store_files(settings.data.val)


def another_run_error(folder: Path, resumed: Path | None = None) -> CheckpointError:
    """The error for a folder with a run that this one does not continue; ``resumed`` is the checkpoint of this one."""
    if resumed is None:
        return CheckpointError(
            f"{folder} already contains a run; continue it with --resume, or choose another folder with "
            "--checkpoint-path"
        )
    return CheckpointError(
        f"{folder} contains another run than {resumed}, which this one continues; choose another folder with "
        "--checkpoint-path"
    )


def folder_of_run(config: Config | str | Path | None, overrides: Sequence[str], resume: bool | str | Path) -> Path:
    """The folder of a run before its checkpoint is read: where it is set, else that of the checkpoint to resume."""
    if isinstance(resume, bool):
        return Path(settings_of_new_run(config, overrides).checkpoint.path)
    # Other overrides may be valid only for the settings in the checkpoint.
    paths = [pair for pair in overrides if pair.partition("=")[0].strip() == "checkpoint.path"]
    settings = load_config(None, paths, base=config) if isinstance(config, Config) else load_config(config, paths)
    if settings.checkpoint.path:
        return Path(settings.checkpoint.path)
    return Path(resume) if Path(resume).is_dir() else Path(resume).parent


def settings_of_new_run(config: Config | str | Path | None, overrides: Sequence[str], warmup: bool = False) -> Config:
    """The settings with a folder: by default, one named after the experiment."""
    if isinstance(config, Config):
        settings = load_config(None, overrides, base=config)
        name = "run"
    else:
        settings = load_config(config, overrides)
        name = "run" if config is None else Path(config).stem
    if not settings.checkpoint.path:
        settings = with_folder(settings, RUNS_FOLDER / name)
    return with_warmup(settings) if warmup else settings


def with_warmup(settings: Config) -> Config:
    """The settings with the default warmup if they have none."""
    if settings.optim.warmup_epochs:
        return settings
    optim = dataclasses.replace(settings.optim, warmup_epochs=OptimConfig.warmup_epochs)
    return dataclasses.replace(settings, optim=optim)


def with_folder(settings: Config, folder: Path) -> Config:
    """The settings with another folder of the run."""
    checkpoint = dataclasses.replace(settings.checkpoint, path=str(folder))
    return dataclasses.replace(settings, checkpoint=checkpoint)
