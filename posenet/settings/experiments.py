"""The experiments that posenet brings along: TOML files, found by name."""

from __future__ import annotations

from pathlib import Path

from posenet.errors import ConfigError
from posenet.files import read_input
from posenet.messages import suggest

EXPERIMENTS_FOLDER = Path(__file__).parent.parent / "experiments"
"""Their files. In a checkout, the folder config/ is a link to it."""
SETTINGS_FILE = "settings.toml"
"""File in the folder of a run: an experiment with all its settings."""


def experiment_names() -> list[str]:
    """The names of all experiments."""
    return sorted(path.stem for path in EXPERIMENTS_FOLDER.glob("*.toml"))


def named_experiment(config: object, folder: Path = Path()) -> str:
    """The name of the experiment that a ``--config`` means; empty if it is a file or no text.

    A file of the name in the folder comes first; a folder of the name, such as that of a run, is in nobody's way.
    """
    if not isinstance(config, (str, Path)):
        return ""
    path = Path(config)
    is_name = path.name == str(config) and not path.suffix
    return path.name if is_name and ((folder / path).is_dir() or not (folder / path).exists()) else ""


def find_experiment(name: str) -> Path:
    """The file of an experiment; ``ConfigError`` if there is no experiment of this name."""
    names = experiment_names()
    if name not in names:
        raise ConfigError(f"there is no experiment {name}; {suggest(name, names)}{experiment_remedy()}")
    return EXPERIMENTS_FOLDER / f"{name}.toml"


def experiment_remedy() -> str:
    """What an error says where an experiment is not found."""
    return f"give a name ({', '.join(experiment_names())}) or the path of a TOML file"


def experiment_text(name: str) -> str:
    """The TOML file of an experiment, with its comments."""
    return read_input(find_experiment(name)).decode()


def experiment_summary(name: str) -> str:
    """What an experiment is for: the first line of its file."""
    return experiment_text(name).partition("\n")[0].lstrip("# ")
