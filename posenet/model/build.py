"""The network of an experiment: ``PoseNet``, or one of the user's own."""

from typing import cast

import torch
from torch import nn

from posenet.errors import ConfigError
from posenet.extensions import load_extension
from posenet.model.posenet import PoseNet
from posenet.settings import INPUT_MULTIPLE, MAP_STRIDE, Config


def build_network(config: Config) -> PoseNet:
    """The network that ``model.network`` names, else a ``PoseNet``; with random weights, on the current device.

    The name is that of a class, or of a function, that is called with the ``Config``; the class method ``from_config``
    of a class comes first. The network is a ``torch.nn.Module`` with these methods of ``PoseNet``:

    * ``forward(images)``: (N, 3, H, W) BGR, values 0-1, H and W multiples of 64, to ``predictions[stack][scale]`` of
      shape (N, C, H/4 >> scale, W/4 >> scale) with the channels of ``model.skeleton``. The loss of posenet needs five
      scales. One stack is enough.
    * ``heatmaps(images)``: (N, C, H/4, W/4), the maps alone, for prediction.
    * ``head_parameter_names()``, only for ``train.freeze = ["all-but-heads"]``.

    Raises:
        ConfigError: the name cannot be imported, or what it makes is no such network.
    """
    name = config.model.network
    if not name:
        return PoseNet.from_config(config)
    factory = load_extension("model.network", name)
    network = getattr(factory, "from_config", factory)(config)
    if not isinstance(network, nn.Module) or not callable(getattr(network, "heatmaps", None)):
        raise ConfigError(
            f"model.network={name} makes a {type(network).__name__}; let it make a torch.nn.Module with the methods "
            "forward(images) and heatmaps(images)"
        )
    if not any(tensor.is_meta for tensor in network.state_dict().values()):
        was_training = network.training
        network.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            maps = network.heatmaps(torch.zeros(1, 3, INPUT_MULTIPLE, INPUT_MULTIPLE))  # type: ignore[operator]
            found = tuple(maps.shape) if isinstance(maps, torch.Tensor) else type(maps).__name__
        network.train(was_training)
        expected = (1, config.model.skeleton.num_channels, INPUT_MULTIPLE // MAP_STRIDE, INPUT_MULTIPLE // MAP_STRIDE)
        if found != expected:
            raise ConfigError(
                f"model.network={name}: heatmaps returns {found}, not {expected}, for one image of 64 x 64 pixels"
            )
    return cast(PoseNet, network)  # which stands for all networks with its methods
