"""List the experiments that posenet brings along, print the settings of one or of a run, or compare two."""

import argparse
from pathlib import Path

from posenet.cli.main import print_message
from posenet.files import read_input, write_atomically
from posenet.settings import Config, config_differences, config_to_toml, load_config
from posenet.settings.reading import EXPERIMENTS_FOLDER, SETTINGS_FILE, experiment_names, named_experiment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what to print, and what to compare it with."""
    text = "experiment to print, by its name (posenet config tiny > mine.toml) or file; or the folder of a run or a "
    text += "checkpoint, whose settings are printed; by default, all names"
    parser.add_argument("source", nargs="?", metavar="WHAT", help=text)
    parser.add_argument("other", nargs="?", metavar="OTHER", help="another one: print only what differs in it")


def run(args: argparse.Namespace) -> None:
    """Print an experiment or settings, what differs between two, or all names with a line each."""
    names = experiment_names()
    if args.source is None:
        for name in names:
            summary = _text_of(name).partition("\n")[0].lstrip("# ")
            print_message(f"{name:<{max(map(len, names))}}  {summary}")
    elif args.other is not None:
        for line in config_differences(_read(args.source), _read(args.other)):
            print_message(line)
    else:
        name = named_experiment(args.source)
        text = _text_of(name) if name else config_to_toml(_read(args.source))
        write_atomically("-", text.encode("utf-8", "surrogateescape"))


def _text_of(name: str) -> str:
    """The file of an experiment, with its comments."""
    return read_input(EXPERIMENTS_FOLDER / f"{name}.toml").decode()


def _read(source: str) -> Config:
    """The settings of an experiment, by its name or file, of a run, by its folder, or of a checkpoint."""
    path = Path(source)
    if named_experiment(source) or path.suffix.lower() == ".toml":
        return load_config(source)
    if (path / SETTINGS_FILE).is_file():
        return load_config(path / SETTINGS_FILE)
    from posenet.checkpoints.weights import stored_config  # imports PyTorch

    return stored_config(path / "last.pth" if path.is_dir() else path)
