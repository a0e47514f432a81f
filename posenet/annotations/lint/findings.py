"""What a linter finds: faults with a name, the places where they are and how to mend them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from posenet.messages import to_single_line

SHOWN = 5
"""Places named of each kind of finding."""

Severity = Literal["error", "warning"]


@dataclass
class Finding:
    """One kind of fault and where it was found.

    Attributes:
        severity: an error would stop the other tools or make wrong data; a warning may be meant.
        code: a short name that stays the same from version to version.
        message: what is wrong.
        remedy: how to mend it.
        places: ids of annotations or images, or names of files.
    """

    severity: Severity
    code: str
    message: str
    remedy: str
    places: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        more = f" ... (+{len(self.places) - SHOWN} more)" if len(self.places) > SHOWN else ""
        where = f": {to_single_line(', '.join(self.places[:SHOWN]))}{more}" if self.places else ""
        return f"{self.severity}: {self.message}{where}\n  mend it: {self.remedy} [{self.code}]"


class Findings:
    """What was found; findings of one code become one."""

    def __init__(self) -> None:
        self.by_code: dict[str, Finding] = {}

    def add(self, severity: Severity, code: str, message: str, remedy: str, place: object = None) -> None:
        finding = self.by_code.setdefault(code, Finding(severity, code, message, remedy))
        if place is not None:
            finding.places.append(str(place))

    def sorted(self) -> list[Finding]:
        """Errors first, then warnings."""
        return sorted(self.by_code.values(), key=lambda finding: finding.severity)
