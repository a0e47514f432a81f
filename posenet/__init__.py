"""Finds people and their keypoints in images: bottom-up multi-person pose estimation after Simple Pose.

From an image to its people:

    import cv2
    from posenet import Predictor

    predictor = Predictor.from_checkpoint("checkpoints/demo/last.pth")
    for person in predictor(cv2.imread("data/demo/coco/val2017/000010000005.jpg")):
        print(person.score, person.named())

``Predictor`` runs a trained network, and its checkpoint says all it needs to know: the network, its settings and its
skeleton. A ``Person`` has keypoints in pixels of the image; ``draw_people`` draws them. ``PoseNet`` is the network as
a ``torch.nn.Module``, ``load_config`` reads experiment files, ``load_weights`` copies weights into a network,
``load_skeleton`` reads what a network for other things than people predicts. Every error that a user can mend is a
``PosenetError``, one line that says how.

Importing this package imports neither PyTorch nor OpenCV; the first use of a name does. Everything else is reached by
the full name of its module, such as ``posenet.inference.decoder.host_candidates``. The command line is ``posenet --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posenet.checkpoints.file import load_weights
    from posenet.errors import PosenetError
    from posenet.inference.person import Person
    from posenet.inference.predictor import Predictor
    from posenet.model.posenet import PoseNet
    from posenet.settings.reading import load_config
    from posenet.skeleton.skeleton import Skeleton
    from posenet.skeleton.skeleton_file import load_skeleton
    from posenet.visualization.people import draw_people

__version__ = "0.2.0"
__all__ = [
    "Person",
    "PoseNet",
    "PosenetError",
    "Predictor",
    "Skeleton",
    "draw_people",
    "load_config",
    "load_skeleton",
    "load_weights",
]

_HOME = {
    "Person": "posenet.inference.person",
    "PoseNet": "posenet.model.posenet",
    "PosenetError": "posenet.errors",
    "Predictor": "posenet.inference.predictor",
    "Skeleton": "posenet.skeleton.skeleton",
    "draw_people": "posenet.visualization.people",
    "load_config": "posenet.settings.reading",
    "load_skeleton": "posenet.skeleton.skeleton_file",
    "load_weights": "posenet.checkpoints.file",
}


def __getattr__(name: str) -> object:
    """Import torch and OpenCV only when a name that needs them is used."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'posenet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What ``help(posenet)`` and completion show."""
    return sorted({*globals(), *_HOME})
