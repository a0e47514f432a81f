"""Finds people and their keypoints in images: bottom-up multi-person pose estimation after Simple Pose.

From an image to its people:

    import posenet

    predictor = posenet.Predictor("simplepose")
    for person in predictor("photo.jpg"):
        print(person.score, person.named())

Prediction: ``Predictor`` runs a trained network, and gives a ``Result``, the people of an image; a ``Person`` has
keypoints in pixels. ``draw_people`` draws them, a ``Tracker`` follows them in a video, and ``decode`` finds them in
maps. ``predict`` writes drawings and files of any number of images and videos, and ``app`` serves a page.

Training: ``train("data.yaml")`` takes annotations and does all that is needed; ``build_store``, ``train`` and
``evaluate`` do it step by step. A ``TrainingCallback`` receives the measurements of a run. A training loop of your own
needs ``PoseNet``, ``PoseDataset``, ``TargetRenderer`` and ``FocalL2Loss``, and ``load_config``, ``load_weights`` and
``load_skeleton``.

Every error that a user can fix is a ``PosenetError`` with a one-line message that names the remedy, arguments as flags
of the command line: ``--overwrite`` is ``overwrite=True`` here. Importing this package imports neither PyTorch nor
OpenCV; the first use of a name does. The command line is ``posenet --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posenet.checkpoints.weights import load_weights as load_weights
    from posenet.data.augment import Augmentation as Augmentation
    from posenet.data.build import build_store as build_store
    from posenet.data.dataset import PoseDataset as PoseDataset
    from posenet.data.targets import TargetRenderer as TargetRenderer
    from posenet.diagnosis.diagnose import diagnose as diagnose
    from posenet.errors import PosenetError as PosenetError
    from posenet.inference.app import app as app
    from posenet.inference.decoder.decode import decode as decode
    from posenet.inference.evaluation import evaluate as evaluate
    from posenet.inference.predict import predict as predict
    from posenet.inference.predictor import Predictor as Predictor
    from posenet.inference.result import Result as Result
    from posenet.inference.tracking.tracker import Tracker as Tracker
    from posenet.model.posenet import PoseNet as PoseNet
    from posenet.person import Person as Person
    from posenet.settings import load_config as load_config
    from posenet.skeleton import Skeleton as Skeleton
    from posenet.skeleton import load_skeleton as load_skeleton
    from posenet.training.log import TrainingCallback as TrainingCallback
    from posenet.training.loss import FocalL2Loss as FocalL2Loss
    from posenet.training.train import train as train
    from posenet.visualization.drawing import draw_people as draw_people

__version__ = "0.7.0"
_MODULES = {
    "Augmentation": "posenet.data.augment",
    "FocalL2Loss": "posenet.training.loss",
    "Person": "posenet.person",
    "PoseDataset": "posenet.data.dataset",
    "PoseNet": "posenet.model.posenet",
    "PosenetError": "posenet.errors",
    "Predictor": "posenet.inference.predictor",
    "Skeleton": "posenet.skeleton",
    "TargetRenderer": "posenet.data.targets",
    "Tracker": "posenet.inference.tracking.tracker",
    "TrainingCallback": "posenet.training.log",
    "app": "posenet.inference.app",
    "build_store": "posenet.data.build",
    "decode": "posenet.inference.decoder.decode",
    "diagnose": "posenet.diagnosis.diagnose",
    "draw_people": "posenet.visualization.drawing",
    "Result": "posenet.inference.result",
    "evaluate": "posenet.inference.evaluation",
    "load_config": "posenet.settings",
    "load_skeleton": "posenet.skeleton",
    "load_weights": "posenet.checkpoints.weights",
    "predict": "posenet.inference.predict",
    "train": "posenet.training.train",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    """Import the module of a public name when the name is first used."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'posenet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and nothing else."""
    return sorted(_MODULES)
