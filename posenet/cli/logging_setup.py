"""How messages look on standard error: text for people, or one JSON object a line for programs."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Literal

LogFormat = Literal["text", "json"]


class JsonFormatter(logging.Formatter):
    """A record as a JSON object on one line: time (UTC), level, logger, message, and the record's ``values``."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "values", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


@contextlib.contextmanager
def messages(form: LogFormat = "text") -> Iterator[None]:
    """Show the log on standard error. As JSON nothing else goes there: no progress bars, and warnings as messages."""
    if form == "text":
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root, measured = logging.getLogger(), logging.getLogger("posenet.training.run_log")
    levels = root.level, measured.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    measured.setLevel(logging.DEBUG)  # what a run measures, which people see in the progress bar
    logging.captureWarnings(True)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
            yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(levels[0])
        measured.setLevel(levels[1])


def say_error(prog: str, message: str) -> None:
    """Tell in the chosen form why a tool ends."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger(prog).error(message)
    else:
        # In one piece: print writes the end of the line by itself, and another process's line may come between.
        sys.stderr.write(f"{prog}: {message}\n")
