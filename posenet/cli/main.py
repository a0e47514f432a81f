"""The ``posenet`` command and what all tools share: parsing, logging, errors and exit status.

A tool is a module of this package with a docstring (its first line is the help text), an
``add_arguments(parser)`` and a ``run(args)``. Exit status: 0 done (also a training that a signal ended: it has saved),
2 bad input or a fault that the message tells how to mend, 130 interrupted; 1 only for a fault of the program.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import posenet
from posenet.cli.logging_setup import messages, say_error
from posenet.errors import PosenetError
from posenet.messages import to_single_line, without_worker_traceback

TOOLS = {
    "make-synthetic": "make_synthetic",
    "build-hdf5": "build_hdf5",
    "train": "train",
    "train-parallel": "train_parallel",
    "train-distributed": "train_distributed",
    "evaluate": "evaluate",
    "predict": "predict",
    "plot": "plot",
    "skeleton": "skeleton",
    "lint-annotations": "lint_annotations",
    "import-weights": "import_weights",
    "export-weights": "export_weights",
    "export-onnx": "export_onnx",
    "benchmark": "benchmark",
}
"""Subcommand to module name."""


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults that say something."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return action.help if action.default in (None, [], False) else super()._get_help_string(action)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``posenet SUBCOMMAND ...`` and return the exit status."""
    argv = _with_dashes(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="posenet",
        description=posenet.__doc__.partition("\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"posenet {posenet.__version__}")
    if not argv or argv[0] not in TOOLS:
        parser.epilog = "tools:\n" + "\n".join(f"  {name:<19}{_summary(name)}" for name in TOOLS)
    parser.add_argument("tool", choices=TOOLS, metavar="tool", help="one of the tools below; posenet TOOL --help")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    chosen = parser.parse_args(argv)
    return run_tool(chosen.tool, chosen.arguments, prog=f"posenet {chosen.tool}")


def run_tool(name: str, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Parse ``argv`` for one tool, run it and return the exit status.

    Option names may be written with ``-`` or ``_``. A ``PosenetError`` or an operating-system error is
    printed as one line on standard error and gives status 2.
    """
    prog = prog or Path(sys.argv[0]).name

    def parse_and_run() -> None:
        module = _module(name)
        args = make_parser(module, prog).parse_args(_with_dashes(sys.argv[1:] if argv is None else argv))
        stack.enter_context(messages(args.log_format))
        module.run(args)

    # Importing PyTorch takes a while: Ctrl-C is to be quiet then, too.
    with contextlib.ExitStack() as stack:
        return status_of(parse_and_run, prog)


def make_parser(module: ModuleType, prog: str) -> argparse.ArgumentParser:
    """The parser of a tool: its own flags, and those that all tools have."""
    parser = argparse.ArgumentParser(prog=prog, description=_describe(module), formatter_class=_HelpFormatter)
    module.add_arguments(parser)
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="messages on standard error: text, or one JSON object a line and no progress bars",
    )
    return parser


def status_of(task: Callable[[], None], prog: str) -> int:
    """Run a task; print an error that a user can act on as one line, and return the exit status."""
    try:
        task()
    except PosenetError as error:
        return _fail(prog, str(error))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _fail(prog, f"{error.strerror or error}{where}")
    except KeyboardInterrupt:
        print(file=sys.stderr)  # the progress bar's line ends here
        say_error(prog, "interrupted")
        return 130
    return 0


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"posenet.cli.{TOOLS[name]}")


def _describe(module: ModuleType) -> str:
    return module.__doc__.partition("\n")[0]


def _summary(name: str) -> str:
    """What a tool does, read from its source: importing it would import PyTorch as well."""
    module = f"posenet.cli.{TOOLS[name]}"
    if module in sys.modules:
        return _describe(sys.modules[module])
    source = importlib.util.find_spec(module).loader.get_source(module)
    return ast.get_docstring(ast.parse(source)).partition("\n")[0]


def _fail(prog: str, message: str) -> int:
    say_error(prog, f"error: {to_single_line(without_worker_traceback(message))}")
    return 2


def _with_dashes(argv: Sequence[str]) -> list[str]:
    """``--checkpoint_path=a_b`` becomes ``--checkpoint-path=a_b``; after a lone ``--`` no word is an option."""
    result = list(argv)
    for i, word in enumerate(argv):
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            result[i] = name.replace("_", "-") + equals + value
    return result
