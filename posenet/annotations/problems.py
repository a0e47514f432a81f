"""Problems of annotation files.

Every check raises an ``AnnotationProblem``. Readers that need a valid file stop at the first one, which
``problems_as_data_errors`` turns into a ``DataError``. The linter catches each one and continues.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from posenet.errors import DataError


@dataclass(frozen=True)
class ProblemKind:
    """One kind of problem."""

    severity: Literal["error", "warning"]
    """An error stops the other tools or leads to wrong data; a warning may be intended."""
    code: str
    """Short name, the same in all versions."""
    message: str
    """The entries with the problem, in the plural: "images without a file"."""
    remedy: str
    """How to fix it."""


def error_kind(code: str, message: str, remedy: str) -> ProblemKind:
    """A kind of problem with the severity "error"."""
    return ProblemKind("error", code, message, remedy)


def warning_kind(code: str, message: str, remedy: str) -> ProblemKind:
    """A kind of problem with the severity "warning"."""
    return ProblemKind("warning", code, message, remedy)


class AnnotationProblem(ValueError):
    """A problem that a check has found.

    Args:
        place: the id of an image, annotation or category, or a file name; None for the whole file.
        detail: one line that describes the problem with its values.
    """

    def __init__(self, kind: ProblemKind, place: object, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.place = place


@contextlib.contextmanager
def problems_as_data_errors(path: str | Path) -> Iterator[None]:
    """Turn an ``AnnotationProblem`` into a ``DataError`` that names the file and the remedy."""
    try:
        yield
    except AnnotationProblem as problem:
        remedy = f"{problem.kind.remedy} (posenet lint-annotations lists all problems)"
        raise DataError(f"{path}: {problem}; {remedy}") from problem
