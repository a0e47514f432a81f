"""The loss of an experiment: the focal L2 loss, or one of the user's own."""

from __future__ import annotations

from torch import nn

from posenet.errors import ConfigError
from posenet.extensions import load_extension, note_in_errors
from posenet.settings import Config
from posenet.training.loss import FocalL2Loss, Loss


def make_loss(config: Config) -> Loss:
    """The loss that ``loss.function`` names, else the focal L2 loss with its terms.

    The name is that of a function ``loss(predictions, target, mask)``, or of a class whose objects are such functions;
    it is called with the ``Config``, or its class method ``from_config`` is. Arguments and result are tensors on the
    device of the batch:

    * ``predictions[stack][scale]``: (N, C, h >> scale, w >> scale), in the precision of the network.
    * ``target``: (N, C, h, w) float32 in [0, 1], the maps of the finest scale.
    * ``mask``: (N, 1, h, w) or (N, C, h, w) float32; 1 where a cell is supervised, 0 where it is ignored.
    * The result is (N,): the loss of every image; or (N, ...): terms whose sum it is.

    Raises:
        ConfigError: the name cannot be imported, or what it makes cannot be called or has parameters.
    """
    name = config.loss.function
    if not name:
        return FocalL2Loss.from_config(config, keep_terms=True)
    found = load_extension("loss.function", name)
    with note_in_errors(f"loss.function={name} is a class, which is called with the Config"):
        loss: Loss = getattr(found, "from_config", found)(config) if isinstance(found, type) else found
    if not callable(loss):
        raise ConfigError(f"loss.function={name} has the type {type(loss).__name__}; give a class or a function")
    if isinstance(loss, nn.Module) and any(True for _ in loss.parameters()):
        raise ConfigError(f"loss.function={name} has parameters, which nothing trains; make them buffers")
    return loss
