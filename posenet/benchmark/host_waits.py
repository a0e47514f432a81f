"""Counts the operations that make the host wait for an accelerator; they can be counted on a CPU too."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

PACKAGE = Path(__file__).parents[1]

READS = frozenset({Tensor.tolist, Tensor.cpu, Tensor.numpy})
"""Methods that read all values of a tensor."""

WAITING_OPERATIONS = frozenset(
    {
        "aten::_local_scalar_dense",  # item, bool, int and float of a tensor
        "aten::bincount",
        "aten::equal",
        "aten::lift_fresh",  # torch.tensor and new_tensor, which copy values from ordinary memory
        "aten::masked_select",
        "aten::nonzero",
        "aten::unique_consecutive",
        "aten::unique_dim",
        "aten::_unique",
        "aten::_unique2",
    }
)
"""Operations with a result, or a shape of it, that the host has to know."""


class HostWaits:
    """A context that counts after which lines of this package the host has to wait.

    ``lines`` has the counts, by ``file: function: line of code``. An operation of a backward pass belongs to the line
    that has called ``backward``.
    """

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self._modes = contextlib.ExitStack()

    @property
    def count(self) -> int:
        return self.lines.total()

    def __enter__(self) -> HostWaits:
        self._modes.enter_context(_Reads(self._record))
        self._modes.enter_context(_Operations(self._record))
        return self

    def __exit__(self, *error: Any) -> None:
        self._modes.close()

    def _record(self) -> None:
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            path = Path(frame.f_code.co_filename)
            if PACKAGE in path.parents and path != Path(__file__):
                line = linecache.getline(str(path), frame.f_lineno).strip()
                self.lines[f"{path.relative_to(PACKAGE).as_posix()}: {frame.f_code.co_name}: {line}"] += 1
                return
        self.lines["outside of the package"] += 1


class _Reads(TorchFunctionMode):
    """Finds methods that read many values, which are no operations where the tensor is in host memory."""

    def __init__(self, record: Callable[[], None]) -> None:
        super().__init__()
        self.record = record

    def __torch_function__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            self.record()
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch has no types for it
    """Finds operations, also inside of functions of PyTorch and in backward passes."""

    def __init__(self, record: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def __torch_dispatch__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _makes_host_wait(func, args, kwargs):
            self.record()
        return func(*args, **kwargs)


def _makes_host_wait(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    name = func._schema.name
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("aten::index", "aten::index_put", "aten::index_put_"):
        # A mask has to be searched for nonzero elements.
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if name == "aten::_to_copy":
        target = kwargs.get("device")
        return target is not None and target != args[0].device and not kwargs.get("non_blocking", False)
    if name == "aten::copy_":
        return args[0].device != args[1].device and not (len(args) > 2 and args[2])
    return name in WAITING_OPERATIONS
