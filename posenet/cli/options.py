"""Flags and argument types that several tools share, the predictor that they define, and words of other programs."""

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from posenet.errors import ConfigError, DataError
from posenet.files import is_standard_output, read_input
from posenet.settings import Config, load_config

if TYPE_CHECKING:
    from posenet.inference.predictor import Predictor

ArgumentContainer = Any
"""A parser, or a group of one; argparse has no public name for groups."""
CHECKPOINT_HELP = "checkpoint of a run, a published one, or a name that posenet weights list shows"
"""Help of a flag that accepts any weights."""
PRECISIONS = ["auto", "off", "bf16", "fp16"]
PUBLISHED = "simplepose"
"""The name of the published weights."""
_INPUTS = "inputs source checkpoint weights config annotations results images image_ids skeleton calibrate".split()
"""Names of the arguments that are paths of inputs."""


def add_switch(container: ArgumentContainer, name: str, help: str, default: Any = False) -> None:
    """Declare a flag that turns something on."""
    container.add_argument(name, action="store_true", default=default, help=help)


def add_quiet_option(parser: argparse.ArgumentParser, default: Any = False) -> None:
    """Declare ``--quiet``."""
    add_switch(parser, "--quiet", "show no progress, and only warnings and errors", default)


def add_action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    """Add the parser of an action to what ``add_subparsers`` of a tool has returned."""
    action: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
    add_quiet_option(action, default=argparse.SUPPRESS)  # where it is before the action, it counts too
    return action


def describe_default(value: object) -> str:
    """The default of a flag or a setting as help texts show it: ``512``, ``on``, ``0.5 1.0 2.0``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, (list, tuple)):
        return " ".join(map(describe_default, value)) or "none"
    return str(value) or "none"


def add_setting(container: ArgumentContainer, flag: str, key: str, text: str, short: str = "", **options: Any) -> None:
    """Declare a flag that overrides a setting: of the setting's type, with its default in the help.

    Among the parsed arguments it has the key of the setting as its name, and None if it is not given.
    """
    section, _, name = key.partition(".")
    default = getattr(getattr(Config(), section), name)
    stated = f"{'that of the checkpoint, or ' if section == 'inference' else ''}{describe_default(default)}"
    if isinstance(default, bool):
        options["action"] = argparse.BooleanOptionalAction
    elif isinstance(default, (int, float)) and "action" not in options:
        options = {"type": type(default), "metavar": "N" if isinstance(default, int) else "X"} | options
    names = [short, flag] if short else [flag]
    container.add_argument(*names, **{"dest": key} | options, help=f"{text} ({key}; default: {stated})")


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Declare ``--config`` and ``--set``."""
    parser.add_argument("--config", metavar="NAME", help="experiment: a name that posenet config lists, or a TOML file")
    parser.add_argument(
        "--set",
        type=key_and_value,
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override settings, one or more, for example model.stacks=2 data.workers=0",
    )


def add_overwrite_option(container: ArgumentContainer) -> None:
    """Declare ``--overwrite``; see ``posenet.files.check_outputs``."""
    add_switch(container, "--overwrite", "replace existing outputs; an input is never replaced")


def message_stream(*outputs: str | Path | None) -> TextIO:
    """Where a tool prints its messages: standard error if one of its outputs is standard output."""
    return sys.stderr if any(output is not None and is_standard_output(output) for output in outputs) else sys.stdout


def input_files(args: argparse.Namespace) -> Iterator[Path | int]:
    """Every file that a flag may name as an input, those in ``--set`` included; also names that are no files.

    ``-`` is standard input, descriptor 0. So no output replaces an input.
    """
    for name in _INPUTS:
        value = getattr(args, name, None)
        for word in value if isinstance(value, list) else [value]:
            if isinstance(word, (str, Path)):
                yield 0 if word == "-" else Path(word)
    for pair in getattr(args, "overrides", ()):
        yield Path(pair.partition("=")[2].strip(" '\""))


def with_dashes(argv: Sequence[str]) -> list[str]:
    """The words of a command line with ``-`` in place of ``_`` in names of flags, up to a lone ``--``."""
    end = argv.index("--") if "--" in argv else len(argv)
    pairs = (word.partition("=") if word.startswith("--") else ("", "", word) for word in argv[:end])
    return [name.replace("_", "-") + equals + value for name, equals, value in pairs] + list(argv[end:])


def key_and_value(text: str) -> str:
    """Argument type: ``KEY=VALUE``."""
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE; inputs come first")
    return text


def _number(kind: type[int] | type[float], low: float, high: float = math.inf) -> Callable[[str], float]:
    """Argument type: a number from ``low`` to ``high``."""

    def parse(text: str) -> float:
        value = kind(text)
        if not low <= value <= high:
            limits = f"at least {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {limits}")
        return value

    parse.__name__ = kind.__name__  # for "invalid int value"
    return parse


positive_int = _number(int, 1)
non_negative_int = _number(int, 0)
fraction = _number(float, 0, 1)
seconds = _number(float, 0)
minutes = _number(float, 1e-9, 100_000)  # ten weeks


def add_image_ids(parser: argparse.ArgumentParser, text: str) -> None:
    """Declare ``--image-ids``, which ``read_image_ids`` reads."""
    parser.add_argument("--image-ids", nargs="+", metavar="ID", help=text)


def read_image_ids(words: list[str] | None) -> set[int] | None:
    """Parse image ids: ``words`` are the ids, or one text file with ids separated by spaces, commas or line ends."""
    if words is None:
        return None
    given = " ".join(words)
    try:
        if len(words) == 1 and not given.lstrip("-").isdecimal():
            words = read_input(given).decode("utf-8-sig").replace(",", " ").split()
        return {int(word) for word in words}
    except OSError as error:
        raise DataError(f"cannot read image ids from {given}; give ids or a text file of ids") from error
    except ValueError as error:
        raise DataError(f"--image-ids {given[:100]}: {error}; image ids are whole numbers") from error


def add_network_options(
    parser: argparse.ArgumentParser, amp: str, checkpoint: str | None = None, backend: str = "auto"
) -> None:
    """Add the options that name a network and say how to run it, with these defaults; ``backend`` describes one."""
    from posenet.inference.networks import BACKENDS

    group = parser.add_argument_group("network")
    text = f"{CHECKPOINT_HELP}; or a file that posenet export-onnx has written (.onnx)"
    if checkpoint:
        text += f" (default: {checkpoint}, the published weights)"
    names = ("--checkpoint", "--weights")
    group.add_argument(*names, required=checkpoint is None, default=checkpoint, metavar="FILE", help=text)
    add_setting(group, "--height", "inference.height", "resize images to this height")
    text = "average over these multiples of the height"
    add_setting(group, "--scales", "inference.scales", text, type=float, nargs="+", metavar="S")
    add_setting(group, "--flip", "inference.flip", "average with the mirrored image")
    text = "software that runs the network: auto is the fastest one that is installed and as accurate"
    group.add_argument("--backend", choices=BACKENDS, help=f"{text} (default: {backend})")
    group.add_argument("--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ...")
    text = "precision of the network: off is float32, auto is the fastest one without loss of accuracy on the device"
    group.add_argument("--amp", choices=PRECISIONS, default=amp, help=text)
    add_config_options(parser)


def make_predictor(args: argparse.Namespace, min_score: float = 0.0, num_images: int | None = None) -> "Predictor":
    """The predictor that the options define; ``num_images`` is that of ``Predictor``."""
    from posenet.inference.networks import is_exported_file
    from posenet.inference.predictor import Predictor

    given = {key: value for key, value in vars(args).items() if key.startswith("inference.") and value is not None}
    flags = {key.removeprefix("inference."): value for key, value in given.items()}
    is_exported = is_exported_file(args.checkpoint)
    if is_exported:
        if args.config or overridden(args, "model"):
            raise ConfigError(
                f"{args.checkpoint} is an exported file with a network and settings of its own; leave out "
                "--config, and model.* in --set"
            )
        flags = overridden(args, "inference") | flags
    predictor = Predictor(
        args.checkpoint,
        config=requested_config(args, args.checkpoint),
        device=args.device,
        amp=args.amp,
        backend=args.backend or "auto",
        num_images=num_images,
        min_score=min_score,
        **flags,
    )
    if is_exported:
        predictor.tracking = dataclasses.replace(predictor.tracking, **overridden(args, "tracking"))
    return predictor


def overridden(args: argparse.Namespace, section: str) -> dict[str, Any]:
    """The keys of a section that ``--set`` names, and their values."""
    keys = [pair.partition("=")[0].strip().partition(".") for pair in args.overrides]
    values = getattr(load_config(None, args.overrides), section)
    return {name: getattr(values, name) for of_section, _, name in keys if of_section == section}


def requested_config(args: argparse.Namespace, weights: str) -> Config | None:
    """The configuration of ``--config`` and ``--set``; None for that of the checkpoint or the exported file."""
    from posenet.inference.networks import is_exported_file

    if is_exported_file(weights) or not (args.config or args.overrides):
        return None
    config = load_config(args.config, args.overrides)  # a wrong one is reported before weights are downloaded
    if args.config:
        return config
    from posenet.checkpoints.weights import stored_config

    return load_config(None, args.overrides, base=stored_config(weights))


_LAUNCHER = "it is one of the launcher, before the tool: torchrun --nnodes 2 ... -m posenet train-distributed"
_NPROC = "use --nproc N of train-distributed or evaluate, one process for each GPU; CUDA_VISIBLE_DEVICES names the GPUs"
_FOLDER = "use --checkpoint-path DIR in training, --output DIR elsewhere"
_OTHER_FLAGS = {
    "--nnodes --node-rank --nproc-per-node --master-addr --master-port --rank --dist-url --init-method": _LAUNCHER,
    "--gpus --num-gpus --ngpus --nproc --world-size --distributed --ddp": _NPROC,
    "--gpu --gpu-id --gpu-ids --cuda": "use --device cuda, or cuda:1 for the second",
    "--half --fp16 --bf16 --mixed-precision --precision": "use --amp fp16 or --amp bf16",
    "--ema --model-ema --swa": "use --set average.kind=ema, or --config simplepose_swa",
    "--data --dataset --data-dir --data-path --train-data --source --input --image --video": "give it without a flag",
    "--model --ckpt --pretrained --load": "use --weights FILE; --config NAME is the network",
    "--imgsz --img-size --image-size --input-size": "use --set train.input_size=N in training, --height N elsewhere",
    "--project --name --save-dir --out-dir --output-dir --work-dir": _FOLDER,
    "--batch --bs --num-workers": "use --set train.batch_size=N data.workers=N, which are those of one process",
    "--learning-rate --lr0 --base-lr --num-epochs --max-epochs": "use --lr X and --epochs N",
    "--conf --conf-thres --score-thr --threshold": "use --min-score X",
}
"""Flags of other programs, and what to type instead of one where a tool does not have it."""


def remedy_for_unknown(flag: str) -> str:
    """What to type in place of a flag of another program, or with the name of a setting; empty if this is unknown."""
    flag = flag.partition("=")[0]
    for flags, remedy in _OTHER_FLAGS.items():
        if flag in flags.split():
            return f"; {remedy}"
    name = flag.lstrip("-").removeprefix("no-").replace("-", "_")
    keys = [f"{section}.{name}" for section, values in vars(Config()).items() if hasattr(values, name)]
    return f"; {keys[0]} is a setting: --set {keys[0]}=VALUE" if len(keys) == 1 else ""
