"""Logging of the command line on standard error: text for people, or one JSON object per line for programs."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, Literal

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
def log_to_stderr(log_format: LogFormat = "text") -> Iterator[None]:
    """Show log messages on standard error.

    In JSON format, nothing else is printed there: no progress bars, and warnings become log messages.
    """
    if log_format == "text":
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        yield
        return
    root = logging.getLogger()
    measurements = logging.getLogger(MEASUREMENTS_LOGGER)
    previous_levels = root.level, measurements.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
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


@contextlib.contextmanager
def log_only_warnings() -> Iterator[None]:
    """Show only warnings and errors."""
    root = logging.getLogger()
    previous_level = root.level
    root.setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(previous_level)


def report_error(prog: str, message: str) -> None:
    """Print, in the chosen format, why a tool ends."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger(prog).error(message)
    else:
        # One write call: print writes the line end separately, and another process could write in between.
        sys.stderr.write(f"{prog}: {message}\n")
