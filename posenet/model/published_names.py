"""The names of the authors' published checkpoints, and ours for the same tensors.

Only names differ; tensors pass through untouched. The published prefix ``posenet.`` may be present or
already stripped; wrapper prefixes such as ``module.`` are the caller's to strip.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from posenet.errors import CheckpointError
from posenet.settings import NUM_SCALES

PREFIX = "posenet."

Pair = tuple[str, str]
"""Our name of a module and the published one, with ``#`` for the number of the stack."""

_NUMBERED = re.compile(r"^(stacks|merges|hourglass|features|outs|merge_preds|merge_features)\.(\d+)\.")


def is_published(names: Iterable[str]) -> bool:
    """Whether any of these parameter names is one that only published checkpoints use."""
    return any(_rename(name.removeprefix(PREFIX), _TO_OURS) for name in names)


def to_ours(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state under our names, in its own order.

    A name that no published network has is kept, so that whoever loads the result reports it.
    """
    return {_rename(name.removeprefix(PREFIX), _TO_OURS) or name: tensor for name, tensor in state.items()}


def to_published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state under the published names, prefix included, in its own order.

    Raises:
        CheckpointError: a name that no ``PoseNet`` has.
    """
    result = {}
    for name, tensor in state.items():
        published = _rename(name, _TO_PUBLISHED)
        if published is None:
            raise CheckpointError(f"{name} has no published name: pass the state of an unwrapped PoseNet")
        result[PREFIX + published] = tensor
    return result


def _rename(name: str, table: Mapping[str, str]) -> str | None:
    """Look up the module in ``table`` and keep the tensor's own name (weight, running_mean, ...)."""
    module, _, tensor = name.rpartition(".")
    number = _NUMBERED.match(module)
    renamed = table.get(_NUMBERED.sub(r"\1.#.", module))
    return renamed and f"{renamed}.{tensor}".replace("#", number[2] if number else "")


def _modules() -> Iterator[Pair]:
    """Every module that holds tensors. Some pairs fit no module, such as the shortcut of an even residual."""
    yield "stem.entry.conv", "pre.conv1"
    yield "stem.entry.norm", "pre.bn1"
    yield from _residual("stem.widen", "pre.res1")
    yield from _residual("stem.refine", "pre.res2")
    for index in range(6):
        yield from _conv_norm(f"stem.dilated.{index}", f"pre.dilation.{index}")
    for level in range(NUM_SCALES - 1):
        yield from _hourglass_level("stacks.#.hourglass" + ".inner" * level, f"hourglass.#.hg.{level}")
    for scale in range(NUM_SCALES):
        yield from _head(f"stacks.#.heads.{scale}", f"features.#.before_regress.{scale}")
        yield f"stacks.#.heads.{scale}.output", f"outs.#.{scale}.conv"
        yield from _conv_norm(f"merges.#.{scale}.maps", f"merge_preds.#.{scale}.conv")
        yield from _conv_norm(f"merges.#.{scale}.features", f"merge_features.#.{scale}.conv")


def _hourglass_level(ours: str, published: str) -> Iterator[Pair]:
    for index, name in enumerate(("skip", "down", "up")):
        yield from _residual(f"{ours}.{name}", f"{published}.{index}")
    yield from _conv_norm(f"{ours}.smooth", f"{published}.3")
    yield from _residual(f"{ours}.inner", f"{published}.4")


def _head(ours: str, published: str) -> Iterator[Pair]:
    for index in range(2):
        yield from _conv_norm(f"{ours}.features.{index}", f"{published}.{index}")
    yield f"{ours}.features.2.squeeze", f"{published}.2.fc.0"
    yield f"{ours}.features.2.excite", f"{published}.2.fc.2"


def _residual(ours: str, published: str) -> Iterator[Pair]:
    """The published bottleneck is one sequence: convolution, normalisation, activation, and so on."""
    for index, name in enumerate(("reduce", "spatial", "expand")):
        yield f"{ours}.{name}.conv", f"{published}.convBlock.{3 * index}"
        yield f"{ours}.{name}.norm", f"{published}.convBlock.{3 * index + 1}"
    yield f"{ours}.shortcut.conv", f"{published}.skipConv.0"
    yield f"{ours}.shortcut.norm", f"{published}.skipConv.1"


def _conv_norm(ours: str, published: str) -> Iterator[Pair]:
    yield f"{ours}.conv", f"{published}.conv"
    yield f"{ours}.norm", f"{published}.bn"


_TO_PUBLISHED = dict(_modules())
_TO_OURS = {published: ours for ours, published in _TO_PUBLISHED.items()}
