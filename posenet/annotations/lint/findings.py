"""Collecting the problems of an annotation file and describing them to the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from posenet.annotations.problems import AnnotationProblem, ProblemKind
from posenet.messages import to_single_line

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

SHOWN_PLACES = 5
"""Number of places in the text of a finding."""


@dataclass(frozen=True)
class Finding(ProblemKind):
    """One kind of problem and its places: ids of images, annotations or categories, file names, or keypoint pairs."""

    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.severity}: {self.message}"
        if self.places:
            text += ": " + to_single_line(", ".join(self.places[:SHOWN_PLACES]))
        if len(self.places) > SHOWN_PLACES:
            text += f" ... (+{len(self.places) - SHOWN_PLACES} more)"
        return f"{text}\n  fix: {self.remedy} [{self.code}]"


class Findings:
    """Collects problems; all problems with one code become one finding."""

    def __init__(self) -> None:
        self._by_code: dict[str, Finding] = {}

    def add(self, kind: ProblemKind, place: object = None) -> None:
        """Add a problem and, unless it concerns the whole file, its place."""
        finding = self._by_code.setdefault(kind.code, Finding(**vars(kind)))
        if place is not None:
            finding.places.append(str(place))

    def check(
        self, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result | None:
        """Return ``function(*args, **kwargs)``; if it raises an ``AnnotationProblem``, add that and return None."""
        try:
            return function(*args, **kwargs)
        except AnnotationProblem as problem:
            self.add(problem.kind, problem.place)
            return None

    def sorted(self) -> list[Finding]:
        """The findings, errors first."""
        return sorted(self._by_code.values(), key=lambda finding: finding.severity)
