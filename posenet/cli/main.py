"""The ``posenet`` command: argument parsing, what is shown, error messages and exit status of all tools.

A tool is a module of this package. ``add_arguments(parser)`` declares its flags; ``run(args)`` runs it and returns the
exit status, or None for success.

Exit status: 0 success; 75 a training run that a signal has stopped and that is saved, or whose processes did not reach
each other: start it again; 2 bad input or another fault that the user can fix; 130 interrupted; 141 the reader of
standard output has ended; 1 a fault of the program.
"""

import argparse
import contextlib
import errno
import importlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TextIO

import posenet
from posenet.cli.options import add_quiet_option, describe_default, remedy_for_unknown, with_dashes
from posenet.devices.ranks import rank_of_process
from posenet.devices.signals import STOPPED_STATUS, repeat_lost_interrupts
from posenet.errors import ConnectError, OtherRankError, PosenetError
from posenet.files import STANDARD_OUTPUT, name_file_in_errors
from posenet.messages import MessageFormatter, is_out_of_memory, suggest, to_printable, to_single_line
from posenet.progress_bar import AboveBarHandler, close_bars, hide_progress

_TOOLS = {
    "make-synthetic": "Generate a synthetic data set of people in COCO's layout, for tests and first experiments.",
    "build-hdf5": "Build a training store (.h5) from a folder of images and a COCO keypoint file, or inspect one.",
    "config": "List the experiments by name, such as tiny, or print one as a file to change.",
    "docs": "List the pages of the documentation, or print one.",
    "train": "Train a PoseNet on one device; Ctrl-C finishes the step and saves, --resume continues.",
    "train-parallel": "Train a PoseNet on several devices of one machine, in one process (DataParallel).",
    "train-distributed": "Train a PoseNet in several processes, on one machine or several (DistributedDataParallel).",
    "evaluate": "Evaluate a checkpoint on a COCO keypoint split: AP and AR, and the results file.",
    "diagnose": "Diagnose COCO results: which errors cost how much AP, as a report.",
    "predict": "Find people in images, videos, streams and cameras; draw them, and write their keypoints.",
    "app": "Open a page on this machine: drop a photograph or a video, see the people, download their keypoints.",
    "annotations": "Annotation files: find and repair problems, import other formats, draft skeletons, split.",
    "export-onnx": "Export a network as an ONNX file, which computes the maps of images without PyTorch.",
    "weights": "List published weights and download them by name; convert weights from and to the published format.",
}
TOOLS = {name: text for name, text in _TOOLS.items() if find_spec(f"posenet.cli.{name.replace('-', '_')}")}
"""The commands that are installed, and their help texts; parts of the package can be left out."""


class ToolParser(argparse.ArgumentParser):
    """A parser whose help shows defaults, which accepts no abbreviations, and whose errors are one line."""

    def __init__(self, **options: Any) -> None:
        # Abbreviations would take flags of other programs for others of this one, such as --conf for --config.
        defaults: dict[str, Any] = {"formatter_class": _HelpFormatter, "allow_abbrev": False}
        super().__init__(**defaults | options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, to_single_line(f"{self.prog}: error: {message}; see {self.prog} --help") + "\n")


class _HelpFormatter(argparse.HelpFormatter):
    """Adds "(default: ...)" to the help of a flag that has a default and does not state it already."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if "default" in text or not action.option_strings or action.default in (None, [], argparse.SUPPRESS):
            return text
        return f"{text} (default: {describe_default(action.default)})".replace("%", "%%")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``posenet TOOL ...`` and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = ToolParser(
        prog="posenet",
        description=(posenet.__doc__ or "").partition("\n")[0],
        epilog="\n".join(["tools (posenet TOOL --help):", *(f"  {name:<19}{text}" for name, text in TOOLS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"posenet {posenet.__version__}")
    parser.add_argument("tool", metavar="tool", help="one of the tools below")
    if not words:
        parser.print_help(sys.stderr)
        return 2
    tool = parser.parse_args(words[:1]).tool
    if tool not in TOOLS:
        remedy = f"{suggest(tool, TOOLS)}known: {', '.join(TOOLS)}; posenet predict INPUT finds people in images"
        parser.error(f"there is no tool {tool}; {remedy}")
    return run_tool(tool, words[1:], prog=f"posenet {tool}")


def run_tool(name: str, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Parse the arguments of one tool (by default ``sys.argv[1:]``), run it and return the exit status.

    Option names may be written with ``-`` or ``_``. ``prog`` is the name in messages; by default, that of the script.
    """
    _open_closed_streams()
    # OpenCV, which is not imported yet, would write lines of its own about files that it cannot read.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    program = Path(sys.argv[0]).name if prog is None else prog
    arguments = with_dashes(sys.argv[1:] if argv is None else argv)

    def parse_and_run() -> int | None:
        parser = make_parser(name, program)
        args, unknown = parser.parse_known_args(arguments)
        if unknown:
            parser.error(f"{unknown[0]} is not known here{remedy_for_unknown(unknown[0])}")
        args.command = [name, *arguments]
        args.prog = program
        status: int | None = args.run(args)
        return status

    # Logging stays active until an error has been reported.
    with log_to_stderr("--quiet" in arguments, rank_of_process(os.environ)):
        return run_and_report(parse_and_run, program)


def _open_closed_streams() -> None:
    """Open the null device for standard streams that are closed: else a file that is opened later would have the number
    of one, and libraries would write their messages into it. ``sys.stdout`` stays None, an error for an output."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:  # the lowest free number
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def make_parser(name: str, prog: str) -> ToolParser:
    """Build the parser of a tool. Importing its module may take seconds."""
    tool = importlib.import_module(f"posenet.cli.{name.replace('-', '_')}")
    parser = ToolParser(prog=prog, description=TOOLS[name])
    tool.add_arguments(parser)
    add_quiet_option(parser)
    parser.set_defaults(run=tool.run)
    return parser


def run_and_report(task: Callable[[], int | None], prog: str) -> int:
    """Run a task and return its exit status; report an error that the user can fix as one line on standard error."""
    try:
        with repeat_lost_interrupts():
            status = task() or 0
            if sys.stdout is not None:
                with name_file_in_errors(STANDARD_OUTPUT):
                    sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        report_error(prog, "interrupted")
        return 130
    except OtherRankError:  # the rank that has failed reports the error
        return 2
    except Exception as error:
        if isinstance(error, BrokenPipeError) and error.filename == STANDARD_OUTPUT:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest at its end
            return 128 + 13  # as if by SIGPIPE, and without a message: the reader, such as head, has ended
        text = _describe_error(error)
        if not text:
            raise
        rank = rank_of_process(os.environ)
        report_error(prog, f"error: {f'rank {rank}: ' if rank else ''}{to_single_line(text)}")
        return STOPPED_STATUS if isinstance(error, ConnectError) else 2


def _describe_error(error: Exception) -> str:
    """What is shown of an error; nothing for a fault of the program."""
    if isinstance(error, PosenetError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return "PyTorch is not installed: pip install torch; without it, exported files work in one process"
    if isinstance(error, ModuleNotFoundError) and str(error.name).startswith("posenet."):
        return f"{error.name} is not in this installation; install all of posenet, or do without it"
    if is_out_of_memory(error):  # on a device: see ``Runtime.explain_errors``
        reason = str(error).partition("\n")[0][:200]
        return f"too little memory{f' ({reason})' if reason else ''}; lower the batch size and the number of workers"
    if isinstance(error, OSError):
        remedy = "; free disk space, or choose another folder" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}{remedy}"
    return ""


def report_error(prog: str, message: str) -> None:
    """Print why a tool ends."""
    with contextlib.suppress(OSError):  # the status says it, if standard error is a full disk
        close_bars()
        print_message(f"{prog}: {message}", file=sys.stderr)
        sys.stderr.flush()


def print_message(*values: object, file: TextIO | None = None) -> None:
    """Print text for people, as ``print`` does, to standard output or ``file``; all tools print with this function.

    The text is safe for a terminal, and characters that the encoding of the stream does not have become "?". Data for
    programs must not be changed so: ``write_atomically`` and ``open_text_output`` write them.
    """
    stream = sys.stdout if file is None else file
    if stream is None:  # it is closed
        return
    text = to_printable(" ".join(map(str, values)) + "\n")
    encoding = stream.encoding or "utf-8"
    with name_file_in_errors(STANDARD_OUTPUT) if stream is sys.stdout else contextlib.nullcontext():
        # One write call: print writes the line end separately, and another process could write in between.
        stream.write(text.encode(encoding, "replace").decode(encoding))


@contextlib.contextmanager
def log_to_stderr(quiet: bool = False, rank: int = 0) -> Iterator[None]:
    """Show log messages and warnings of Python on standard error.

    Args:
        quiet: show only warnings and errors, and no progress.
        rank: number of this process. Processes other than rank 0 show only what concerns them alone: errors, and
            warnings about their part of the data.
    """
    handler = AboveBarHandler(sys.stderr)
    handler.setLevel(logging.WARNING if quiet or rank else logging.INFO)
    handler.setFormatter(MessageFormatter((f"rank {rank}: " if rank else "") + "%(mark)s%(message)s"))
    if rank:
        handler.addFilter(_concerns_this_rank_alone)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings(), hide_progress() if quiet or rank else contextlib.nullcontext():
            # Pillow warns of damaged EXIF data, which are then no orientation, and PyTorch of more workers than cores.
            warnings.filterwarnings("ignore", module=r"PIL\.|torch\.utils\.data\.")
            yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(level)


def _concerns_this_rank_alone(record: logging.LogRecord) -> bool:
    """Whether other ranks than 0 show a message."""
    is_ours = record.name.startswith("posenet.")
    return record.levelno >= logging.ERROR or not is_ours or record.name == "posenet.training.batches"
