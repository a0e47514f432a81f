"""The network and the names of its published weights."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posenet.model.posenet import PoseNet

__all__ = ["PoseNet"]


def __getattr__(name: str) -> object:
    """Import torch only when the network is used."""
    if name == "PoseNet":
        return import_module("posenet.model.posenet").PoseNet
    raise AttributeError(f"module 'posenet.model' has no attribute {name!r}")
