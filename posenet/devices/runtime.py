"""How training uses one process on one device; ``parallel.py`` has the runtimes of several."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posenet.devices.device import select_device
from posenet.devices.ranks import DEFAULT_TIMEOUT_MINUTES, Ranks
from posenet.errors import TrainingError
from posenet.messages import first_sentence


class Runtime(Ranks):
    """One process on one device: the calls of ``Ranks`` that concern all processes just call their function."""

    device = torch.device("cpu")
    timeout_minutes = DEFAULT_TIMEOUT_MINUTES

    def select_device(self, name: str) -> None:
        """Use the device called ``name``; "auto" is an accelerator or the CPU. ``ConfigError`` if it is missing."""
        self.device = select_device(name)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Move a module to the device and wrap it, so that its gradients are averaged over the batches of all ranks."""
        return module.to(self.device)

    def convert_sync_batch_norm(self, network: nn.Module) -> nn.Module:
        """Make every BatchNorm compute its statistics over the batches of all ranks."""
        return network

    def no_gradient_sync(self, module: nn.Module) -> contextlib.AbstractContextManager[Any]:
        """A context in which the backward pass of a wrapped module does not exchange gradients between ranks."""
        return contextlib.nullcontext()

    def to_device(self, batch: Any) -> Any:
        """Move a batch to where the wrapped module expects it."""
        return batch.to(self.device)

    def sum_over_ranks(self, *numbers: int) -> list[int]:
        """For each number or flag of the host, the sum over all ranks. This does not wait for the device."""
        return list(map(int, numbers))

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The elementwise sum of a tensor on the device over all ranks."""
        return values

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite tensors on the device with those of rank 0."""

    @contextlib.contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Within this context, an error of PyTorch that the user can fix becomes a ``TrainingError``."""
        try:
            yield
        except RuntimeError as error:
            reason = first_sentence(error)
            # Gloo raises a plain RuntimeError when another process has ended or does not answer.
            is_gloo = "gloo" in str(error).lower()
            if isinstance(error, torch.OutOfMemoryError):
                text = f"{self.device} has too little memory; lower train.batch_size and raise optim.accumulate"
            elif "torch.use_deterministic_algorithms" in str(error):
                text = f"{self.device} cannot compute so ({reason}); give --set train.deterministic=false"
            elif is_gloo and "timed out" in str(error).lower():
                text = f"waited {self.timeout_minutes:g} minutes for another process; raise --timeout if it still works"
            elif is_gloo or isinstance(error, torch.distributed.DistError):
                text = f"lost the other processes ({reason}): see the one that has failed, and --resume"
            else:
                raise
            raise TrainingError(text) from error
