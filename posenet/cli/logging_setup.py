"""What the command line shows: printed text, log messages above progress bars, and errors. All of it is printable."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TextIO

from posenet.files import STANDARD_OUTPUT, name_file_in_errors
from posenet.messages import MessageFormatter, to_printable
from posenet.progress_bar import AboveBarHandler, close_bars, hide_progress


def replace_closed_streams() -> None:
    """Open the null device in place of standard streams that are closed.

    The next file that is opened would get the number of a closed one, and libraries that write messages to standard
    error would write them into that file. ``sys.stdout`` stays None, so that an output to it is an error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


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
    level, show_warning = root.level, warnings.showwarning
    # A program that calls a tool may show log messages, and capture warnings, itself.
    shown = [other for other in root.handlers if getattr(other, "stream", None) in (sys.stdout, sys.stderr)]
    if not shown:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    has_captured = warnings.showwarning is not show_warning
    try:
        with warnings.catch_warnings(), hide_progress() if quiet or rank else contextlib.nullcontext():
            # Pillow warns of damaged EXIF data, which are then no orientation.
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
            yield
    finally:
        if has_captured:
            logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(level)


def _concerns_this_rank_alone(record: logging.LogRecord) -> bool:
    """Whether other ranks than 0 show a message."""
    is_ours = record.name.startswith("posenet.")
    return record.levelno >= logging.ERROR or not is_ours or record.name == "posenet.training.batches"


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


def report_error(prog: str, message: str) -> None:
    """Print why a tool ends."""
    with contextlib.suppress(OSError):  # the status says it, if standard error is a full disk
        close_bars()
        print_message(f"{prog}: {message}", file=sys.stderr)
        sys.stderr.flush()
