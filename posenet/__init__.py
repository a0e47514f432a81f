"""Bottom-up multi-person pose estimation: train, evaluate and run a PoseNet."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posenet.checkpoint import load_weights
    from posenet.config import load_config
    from posenet.inference.person import Person
    from posenet.inference.predictor import Predictor
    from posenet.model.posenet import PoseNet

__version__ = "0.1.0"
__all__ = ["Person", "PoseNet", "Predictor", "load_config", "load_weights"]

_HOME = {
    "Person": "posenet.inference.person",
    "PoseNet": "posenet.model.posenet",
    "Predictor": "posenet.inference.predictor",
    "load_config": "posenet.config",
    "load_weights": "posenet.checkpoint",
}


def __getattr__(name: str) -> object:
    """Import torch and OpenCV only when a name that needs them is used."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'posenet' has no attribute {name!r}")
