"""The ``posenet`` command: argument parsing, logging, error messages and exit status of all tools.

A tool is a module of this package. ``add_arguments(parser)`` declares its flags; ``run(args)`` runs it and returns the
exit status, or None for success.

Exit status: 0 success; 75 a training run that a signal has stopped and that is saved, or whose processes did not reach
each other: start it again; 2 bad input or another fault that the user can fix; 130 interrupted; 1 a fault of the
program.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import posenet
from posenet.cli.logging_setup import log_to_stderr, replace_closed_streams, report_error
from posenet.cli.options import add_quiet_option, describe_default, with_dashes
from posenet.cli.other_programs import OTHER_TOOLS, remedy_for_foreign_flag, remedy_for_setting
from posenet.devices.ranks import rank_of_process
from posenet.devices.signals import STOPPED_STATUS, repeat_lost_interrupts
from posenet.errors import ConnectError, OtherRankError, PosenetError
from posenet.files import STANDARD_OUTPUT, name_file_in_errors
from posenet.messages import is_out_of_memory, suggest, to_single_line

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
_MODULES = {module.name for module in pkgutil.iter_modules([os.path.dirname(__file__)])}
TOOLS = {name: text for name, text in _TOOLS.items() if name.replace("-", "_") in _MODULES}
"""The commands that are installed, and their help texts; parts of the package can be left out."""

_ARGUMENT = re.compile(r"(?<![\w.=/-])([a-z_.]+)=(NAMES?|PATH|DIR|FILE|FILE\.h5|FILE\.toml|True)(?!\.?\w)")
"""An argument of Python in a message, such as images=DIR, data.train=FILE.h5 and overwrite=True."""

_REMEDIES = {
    errno.ENOSPC: "free disk space, or choose another folder",
    errno.EDQUOT: "free disk space, or choose another folder",
    errno.EFBIG: "the system limits the size of files (ulimit -f); choose another folder",
    errno.EROFS: "choose another folder",
    errno.EMFILE: "allow more open files (ulimit -n)",
}
"""Remedies for errors of the system, by their number."""


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
    if tool in OTHER_TOOLS:
        parser.error(f"there is no tool {tool}; here it is posenet {OTHER_TOOLS[tool]}")
    if tool not in TOOLS:
        known = f"{suggest(tool, TOOLS)}known: {', '.join(TOOLS)}"
        remedy = f"to find people in it: posenet predict {tool}" if os.path.exists(tool) else known
        parser.error(f"there is no tool {tool}; {remedy}")
    return run_tool(tool, words[1:], prog=f"posenet {tool}")


def run_tool(name: str, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Parse the arguments of one tool (by default ``sys.argv[1:]``), run it and return the exit status.

    Option names may be written with ``-`` or ``_``. ``prog`` is the name in messages; by default, that of the script.
    """
    replace_closed_streams()
    # OpenCV, which is not imported yet, would write lines of its own about files that it cannot read.
    os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
    program = Path(sys.argv[0]).name if prog is None else prog
    arguments = with_dashes(sys.argv[1:] if argv is None else argv)
    # Logging stays active until an error has been reported.
    with log_to_stderr("--quiet" in arguments, rank_of_process(os.environ)):
        return run_and_report(lambda: _parse_and_run(name, arguments, program), program)


def _parse_and_run(name: str, arguments: list[str], program: str) -> int | None:
    """Import a tool, which may take seconds and be interrupted, and run it."""
    parser = make_parser(name, program)
    if remedy := remedy_for_foreign_flag(name, arguments):
        parser.error(remedy)
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        setting = remedy_for_setting(unknown[0]) if "overrides" in args else ""
        parser.error(f"{unknown[0]} is not known here{setting}")
    args.command = [name, *arguments]
    args.prog = program
    status: int | None = load_tool(name).run(args)
    return status


def load_tool(name: str) -> ModuleType:
    """Import the module of a tool."""
    return importlib.import_module(f"posenet.cli.{name.replace('-', '_')}")


def make_parser(name: str, prog: str) -> ToolParser:
    """Build the parser of a tool."""
    parser = ToolParser(prog=prog, description=TOOLS[name])
    load_tool(name).add_arguments(parser)
    add_quiet_option(parser)
    return parser


def run_and_report(task: Callable[[], int | None], prog: str) -> int:
    """Run a task and return its exit status; report an error that the user can fix as one line on standard error."""
    try:
        with repeat_lost_interrupts():
            status = task() or 0
            if sys.stdout is not None:
                with name_file_in_errors(STANDARD_OUTPUT):
                    sys.stdout.flush()
    except OtherRankError:
        status = 2  # the rank that has failed reports the error
    except PosenetError as error:
        _report_failure(prog, str(error))
        status = STOPPED_STATUS if isinstance(error, ConnectError) else 2
    except KeyboardInterrupt:
        report_error(prog, "interrupted")
        status = 130
    except BrokenPipeError as error:
        if error.filename != STANDARD_OUTPUT:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python writes the rest at its end
        status = 128 + 13  # as if by SIGPIPE, and without a message: the reader, such as head, has ended
    except Exception as error:
        text = _describe_system_error(error)
        if not text:  # a fault of the program
            raise
        _report_failure(prog, text)
        status = 2
    return status


def _describe_system_error(error: Exception) -> str:
    """What the system has refused, and a remedy; empty if the error has another cause."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return (
            "PyTorch is not installed (the package torch); without it, only predict, evaluate and diagnose work, with "
            "an exported file and in one process"
        )
    if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("posenet."):
        return f"{error.name} is not installed; install posenet with all its parts"
    if is_out_of_memory(error):  # of the host: ``Runtime.explanation_of`` has the remedy for a device in training
        reason = str(error).partition("\n")[0][:200]
        remedy = "lower the batch size and the number of workers and processes, or allow more memory"
        return f"too little memory{f' ({reason})' if reason else ''}; {remedy}"
    if isinstance(error, OSError):
        file = f": {error.filename}" if error.filename else ""
        remedy = f"; {_REMEDIES[error.errno]}" if error.errno in _REMEDIES else ""
        return f"{error.strerror or error}{file}{remedy}"
    return ""


def _report_failure(prog: str, message: str) -> None:
    rank = rank_of_process(os.environ)
    who = f"rank {rank}: " if rank else ""
    report_error(prog, f"error: {who}{_ARGUMENT.sub(_to_flag, to_single_line(message))}")


def _to_flag(argument: re.Match[str]) -> str:
    """An argument of Python as on the command line: --overwrite, --images DIR, --set data.train=FILE.h5."""
    name, value = argument.groups()
    if "." in name:
        return f"--set {name}={value}"
    flag = f"--{name.replace('_', '-')}"
    return flag if value == "True" else f"{flag} {value}"
