"""The packages that run exported networks, of which some may be missing."""

from __future__ import annotations

import pytest


def require_runtime(name: str) -> str:
    """Skip the test if the package of this runtime is not installed; return the name."""
    pytest.importorskip(name, reason=f"pip install simplepose[{name}]")
    return name
