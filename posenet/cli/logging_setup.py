"""Logging of the command line on standard error: text for people, or one JSON object per line for programs."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Literal

from posenet.progress import AboveBarHandler, above_bars, close_bars, hide_progress

LogFormat = Literal["text", "json"]

MEASUREMENTS_LOGGER = "posenet.training.run_log"
"""Logs the measurements of a training run at level DEBUG; in text format, the progress bar shows them."""


class JsonFormatter(logging.Formatter):
    """Formats a log record as one JSON object: time (UTC), level, logger, message, and the record's ``values``."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        entry: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "values", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


@contextlib.contextmanager
def log_to_stderr(log_format: LogFormat = "text", quiet: bool = False) -> Iterator[None]:
    """Show log messages on standard error, above progress bars.

    In JSON format, nothing else is printed there: no progress bars, and warnings become log messages.

    Args:
        quiet: show only warnings and errors, and no progress.
    """
    level = logging.WARNING if quiet else logging.INFO
    with hide_progress() if quiet else contextlib.nullcontext():
        if log_format == "text":
            with _log_text(level):
                yield
        else:
            with _log_json(level):
                yield


@contextlib.contextmanager
def _log_text(level: int) -> Iterator[None]:
    """Show messages of this level and above as text."""
    root = logging.getLogger()
    handler = AboveBarHandler(sys.stderr)
    handler.setLevel(level)
    previous_level = root.level
    # A program that calls a tool may show log messages itself.
    is_needed = not any(_writes_to_console(other) for other in root.handlers)
    if is_needed:
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    show_warning = warnings.showwarning

    def show_warning_above_bars(*args: Any, **options: Any) -> None:
        with above_bars():
            show_warning(*args, **options)

    warnings.showwarning = show_warning_above_bars
    try:
        yield
    finally:
        warnings.showwarning = show_warning
        if is_needed:
            root.removeHandler(handler)
            root.setLevel(previous_level)


def _writes_to_console(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)


@contextlib.contextmanager
def _log_json(level: int) -> Iterator[None]:
    """Show messages of this level and above, and the measurements of a training run, as JSON objects."""
    root = logging.getLogger()
    measurements = logging.getLogger(MEASUREMENTS_LOGGER)
    previous_levels = root.level, measurements.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    if level > logging.INFO:
        handler.setLevel(level)
    else:
        measurements.setLevel(logging.DEBUG)
    logging.captureWarnings(True)
    try:
        # The handler writes to the original standard error; everything else that is written there is dropped.
        with open(os.devnull, "w", encoding="utf-8") as devnull, contextlib.redirect_stderr(devnull):
            yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(previous_levels[0])
        measurements.setLevel(previous_levels[1])


def report_error(prog: str, message: str) -> None:
    """Print, in the chosen format, why a tool ends."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger(prog).error(message)
    else:
        close_bars()
        # One write call: print writes the line end separately, and another process could write in between.
        sys.stderr.write(f"{prog}: {message}\n")
