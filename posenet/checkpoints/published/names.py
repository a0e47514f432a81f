"""Parameter names of the authors' published checkpoints and our names for the same tensors.

Only the names differ; the tensors are the same. A published name may have the prefix ``posenet.``. The prefixes of
wrappers, such as ``module.``, are removed earlier, in ``posenet.checkpoints.weights``.
"""

import re
from collections.abc import Iterator, Mapping

from torch import Tensor

from posenet.settings import NUM_SCALES

PREFIX = "posenet."

NamePair = tuple[str, str]
"""Our name of a module and the published one; ``#`` stands for the index of the stack."""

_STACK_INDEX = re.compile(r"^(stacks|merges|hourglass|features|outs|merge_preds|merge_features)\.(\d+)\.")


def rename_to_ours(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A published state dict with our parameter names, in the same order.

    A name that is not a published one is kept without the authors' prefix, so that loading the result reports it.
    """
    return {_rename(name.removeprefix(PREFIX), _PUBLISHED_TO_OURS): tensor for name, tensor in state.items()}


def rename_to_published(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a ``PoseNet`` with the published names, in the same order."""
    return {PREFIX + _rename(name, _OURS_TO_PUBLISHED): tensor for name, tensor in state.items()}


def _rename(name: str, table: Mapping[str, str]) -> str:
    """Look up the module of a parameter in ``table``; the last part (weight, running_mean, ...) stays the same."""
    module, _, tensor = name.rpartition(".")
    renamed = table.get(_STACK_INDEX.sub(r"\1.#.", module))
    if renamed is None:
        return name
    match = _STACK_INDEX.match(module)
    stack = match[2] if match else ""
    return f"{renamed}.{tensor}".replace("#", stack)


def _name_pairs() -> Iterator[NamePair]:
    """The names of every module with parameters or buffers.

    Some modules do not exist: a residual block has a shortcut only if it changes the number of channels.
    """
    yield "stem.entry.conv", "pre.conv1"
    yield "stem.entry.norm", "pre.bn1"
    yield from _residual("stem.widen", "pre.res1")
    yield from _residual("stem.refine", "pre.res2")
    for index in range(6):
        yield from _conv_norm(f"stem.dilated.{index}", f"pre.dilation.{index}")
    for level in range(NUM_SCALES - 1):
        ours, published = "stacks.#.hourglass" + ".inner" * level, f"hourglass.#.hg.{level}"
        for index, name in {0: "skip", 1: "down", 2: "up", 4: "inner"}.items():
            yield from _residual(f"{ours}.{name}", f"{published}.{index}")
        yield from _conv_norm(f"{ours}.smooth", f"{published}.3")
    for scale in range(NUM_SCALES):
        ours, published = f"stacks.#.heads.{scale}", f"features.#.before_regress.{scale}"
        for index in range(2):
            yield from _conv_norm(f"{ours}.features.{index}", f"{published}.{index}")
        yield f"{ours}.features.2.squeeze", f"{published}.2.fc.0"
        yield f"{ours}.features.2.excite", f"{published}.2.fc.2"
        yield f"{ours}.output", f"outs.#.{scale}.conv"
        yield from _conv_norm(f"merges.#.{scale}.maps", f"merge_preds.#.{scale}.conv")
        yield from _conv_norm(f"merges.#.{scale}.features", f"merge_features.#.{scale}.conv")


def _residual(ours: str, published: str) -> Iterator[NamePair]:
    """The published block is one sequence: convolution, normalization, activation, convolution and so on."""
    for index, name in enumerate(("reduce", "spatial", "expand")):
        yield f"{ours}.{name}.conv", f"{published}.convBlock.{3 * index}"
        yield f"{ours}.{name}.norm", f"{published}.convBlock.{3 * index + 1}"
    yield f"{ours}.shortcut.conv", f"{published}.skipConv.0"
    yield f"{ours}.shortcut.norm", f"{published}.skipConv.1"


def _conv_norm(ours: str, published: str) -> Iterator[NamePair]:
    yield f"{ours}.conv", f"{published}.conv"
    yield f"{ours}.norm", f"{published}.bn"


_OURS_TO_PUBLISHED = dict(_name_pairs())
_PUBLISHED_TO_OURS = {published: ours for ours, published in _OURS_TO_PUBLISHED.items()}
