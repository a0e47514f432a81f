"""Marks that skip a test in a copy of the package without a part that it needs; see ``tests/test_rooms.py``."""

import importlib.util

import pytest


def _needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs {module}")


needs_checks = _needs("posenet.annotations.checks")
needs_drafting = _needs("posenet.annotations.skeleton_draft")
