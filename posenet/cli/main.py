"""The ``posenet`` command: argument parsing, logging, error messages and exit status of all tools.

A tool is a module of this package. The first line of its docstring is its help text. ``add_arguments(parser)`` declares
its flags; ``run(args)`` runs it and returns the exit status, or None for success.

Exit status: 0 success; 75 a training run that a signal has stopped and that is saved; 2 bad input or another fault that
the user can fix; 130 interrupted; 1 an error in the program itself.
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
from posenet.cli.logging_setup import log_to_stderr, report_error
from posenet.cli.options import SWITCH, describe_default
from posenet.errors import PosenetError
from posenet.messages import to_single_line, without_worker_traceback

TOOLS = (
    "make-synthetic",
    "build-hdf5",
    "train",
    "train-parallel",
    "train-distributed",
    "evaluate",
    "diagnose",
    "predict",
    "plot",
    "annotations",
    "import-weights",
    "export-weights",
    "export-onnx",
    "weights",
    "benchmark",
)
"""Subcommands; the module of ``make-synthetic`` is ``posenet.cli.make_synthetic``."""

OLD_NAMES = {
    "lint-annotations": ["annotations", "lint"],
    "import-annotations": ["annotations", "import"],
    "skeleton": ["annotations", "skeleton"],
}
"""Names of tools in version 0.4, and what replaces them."""

PYTORCH_MISSING = (
    "PyTorch is not installed (the package torch); without it, only predict, evaluate and diagnose work, with an "
    "exported file and in one process"
)


class _HelpFormatter(argparse.HelpFormatter):
    """Adds "(default: ...)" to the help of a flag that has a default and does not state it already."""

    def _get_help_string(self, action: argparse.Action) -> str:
        # Some versions of argparse add this to the help of switches; it prints True and False.
        text = (action.help or "").removesuffix(" (default: %(default)s)")
        if "default" in text or not action.option_strings or action.default in (None, [], argparse.SUPPRESS):
            return text
        default = describe_default(action.default).replace("%", "%%")
        return f"{text} (default: {default})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``posenet TOOL ...`` and return the exit status."""
    argv = normalize_option_names(sys.argv[1:] if argv is None else argv)
    argv = [*OLD_NAMES.get(argv[0], argv[:1]), *argv[1:]] if argv else argv
    parser = argparse.ArgumentParser(
        prog="posenet", description=_first_line(posenet.__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"posenet {posenet.__version__}")
    parser.add_argument("tool", choices=TOOLS, metavar="tool", help="one of the tools below; posenet TOOL --help")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    if not argv or argv[0] not in TOOLS:
        parser.epilog = "tools:\n" + "\n".join(f"  {name:<19}{_tool_summary(name)}" for name in TOOLS)
    if not argv:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(argv)
    return run_tool(args.tool, args.arguments, prog=f"posenet {args.tool}")


def run_tool(name: str, argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Parse the arguments of one tool (by default ``sys.argv[1:]``), run it and return the exit status.

    Option names may be written with ``-`` or ``_``. ``prog`` is the name in messages; by default, that of the script.
    """
    program = Path(sys.argv[0]).name if prog is None else prog
    arguments = normalize_option_names(sys.argv[1:] if argv is None else argv)
    with contextlib.ExitStack() as stack:

        def parse_and_run() -> int | None:
            # Importing PyTorch takes seconds, so Ctrl-C must be handled during the import, too.
            module = load_tool(name)
            args = make_parser(module, program).parse_args(arguments)
            # Logging must stay active until an error has been reported.
            stack.enter_context(log_to_stderr(args.log_format, args.quiet))
            status: int | None = module.run(args)
            return status

        return run_and_report(parse_and_run, program)


def load_tool(name: str) -> ModuleType:
    """Import the module of a tool."""
    return importlib.import_module(_module_name(name))


def make_parser(module: ModuleType, prog: str) -> argparse.ArgumentParser:
    """Build the parser of a tool."""
    parser = argparse.ArgumentParser(prog=prog, description=_first_line(module.__doc__), formatter_class=_HelpFormatter)
    module.add_arguments(parser)
    parser.add_argument(
        "--log-format",
        choices=["text", "json"],
        default="text",
        help="format of messages on standard error: text, or one JSON object per line and no progress bars",
    )
    parser.add_argument("--quiet", **SWITCH, help="show no progress, and only warnings and errors")
    return parser


def run_and_report(task: Callable[[], int | None], prog: str) -> int:
    """Run a task and return the exit status: that of the task, and 0 if it returns None.

    An error that the user can fix is reported as one line on standard error.
    """
    try:
        return task() or 0
    except PosenetError as error:
        return _report_failure(prog, str(error))
    except OSError as error:
        file = f": {error.filename}" if error.filename else ""
        return _report_failure(prog, f"{error.strerror or error}{file}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        return _report_failure(prog, PYTORCH_MISSING)
    except KeyboardInterrupt:
        report_error(prog, "interrupted")
        return 130


def _report_failure(prog: str, message: str) -> int:
    report_error(prog, f"error: {to_single_line(without_worker_traceback(message))}")
    return 2


def _module_name(tool: str) -> str:
    return f"posenet.cli.{tool.replace('-', '_')}"


def _tool_summary(tool: str) -> str:
    """First line of a tool's docstring, read without importing the module, which would import PyTorch."""
    name = _module_name(tool)
    if name in sys.modules:
        return _first_line(sys.modules[name].__doc__)
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return ""
    source = Path(spec.origin).read_text(encoding="utf-8")
    return _first_line(ast.get_docstring(ast.parse(source)))


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def normalize_option_names(argv: Sequence[str]) -> list[str]:
    """Replace ``_`` by ``-`` in option names, up to a lone ``--``: ``--max_steps=a_b`` becomes ``--max-steps=a_b``."""
    normalized = []
    options_end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[:options_end]:
        name, equals, value = word.partition("=")
        normalized.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
    return normalized + list(argv[options_end:])
