"""Checkpoints: unwrapped names, atomic writing, safe reading, remapping and fine-tuning."""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from posenet.checkpoints.checksum import is_packed, is_sound, seal
from posenet.errors import CheckpointError
from posenet.files import atomic_replacement
from posenet.messages import truncate_for_message
from posenet.model import published_names as published
from posenet.model.posenet import PoseNet
from posenet.settings.reading import config_from_dict
from posenet.settings.sections import Config
from posenet.skeleton.skeleton_file import BUILT_IN

FORMAT = 1
"""Version of the dictionary a run saves; a newer one is refused."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadReport:
    """What became of every name when weights were loaded.

    Attributes:
        loaded: names copied into the model.
        missing: names of the model that the file lacks; these kept their values.
        unexpected: names of the file that the model lacks.
        reshaped: names on both sides whose shapes differ; these kept their values.
    """

    path: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.path}: loaded {len(self.loaded)} tensors"]
        for kind in ("missing", "unexpected", "reshaped"):
            if names := getattr(self, kind):
                more = f" ... (+{len(names) - 5} more)" if len(names) > 5 else ""
                lines.append(f"  {kind} {len(names)}: {', '.join(names[:5])}{more}")
        return "\n".join(lines)

    def require_all(self) -> None:
        """Raise ``CheckpointError`` unless file and model agree on every name and shape."""
        if wrong := self.missing + self.reshaped + self.unexpected:
            raise CheckpointError(
                f"{self.path} is of another architecture ({len(wrong)} tensors do not fit, "
                f"first {truncate_for_message(wrong[0])[1:-1]}); give the configuration it was trained with by "
                "--config or --set"
            )


def read(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint file on the CPU, never running code from it.

    Raises:
        CheckpointError: missing, truncated, foreign, of a newer format, or holding objects that are not plain data.
    """
    if not (path := Path(path)).is_file():
        wrong = "is a folder; name a file in it, such as last.pth" if path.is_dir() else "is no file; check the path"
        raise CheckpointError(f"checkpoint {path} {wrong}")
    with open(path, "rb") as file:
        state = _parse(file, path)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} holds no dictionary of weights; use another file")
    version = state.get("format", FORMAT)
    if not isinstance(version, int) or version > FORMAT:
        raise CheckpointError(
            f"{path} has format {truncate_for_message(version)}, newer than this program's {FORMAT}; update posenet"
        )
    return state


def _parse(file: BinaryIO, path: Path) -> Any:
    try:
        if is_packed(file):
            raise CheckpointError(f"checkpoint {path} is compressed, which PyTorch's never are; unpack it first")
        sound = is_sound(file)
        if sound is False:
            raise CheckpointError(f"checkpoint {path} is damaged (its checksum does not match); use an older one")
        # Of files from elsewhere, torch.load does not look at the checksums that the zip container has of every entry.
        if sound is None and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if damaged := archive.testzip():
                    raise CheckpointError(f"checkpoint {path} is damaged (entry {damaged}); use an older one")
        file.seek(0)
        return torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of plain tensors: damaged, foreign, or holding code, "
            "which is never run; use another file"
        ) from error
    # Arbitrary bytes make the unpickler raise almost anything; all of it means the same to the user.
    except Exception as error:
        raise CheckpointError(f"{path} is damaged or not a PyTorch checkpoint; use an older one") from error


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint, with its checksum, so that ``path`` holds its old content or all of the new, come what may.

    Raises:
        CheckpointError: no room, no permission, a failing disk; ``path`` is as it was.
    """
    try:
        with atomic_replacement(path) as temporary, open(temporary, "w+b") as file:
            torch.save(dict(state), file)
            seal(file)
    except (OSError, RuntimeError) as error:
        # PyTorch may make something of its own of what the system said.
        said: BaseException | None = error
        while said is not None and not isinstance(said, OSError):
            said = said.__context__
        reason = said.strerror if said is not None else "is the disk full?"
        raise CheckpointError(
            f"cannot write {path} ({reason}); make room or see to the disk, older files are intact"
        ) from error


def extract_weights(state: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    """The model's tensors in a checkpoint of ours, a published one or a bare state dict, under our names.

    Raises:
        CheckpointError: there are no weights in it.
    """
    keys = ("model", "weights", "state_dict")
    weights = next((state[key] for key in keys if isinstance(state.get(key), Mapping)), state)
    weights = {unwrapped_name(k): v for k, v in weights.items() if isinstance(k, str) and isinstance(v, Tensor)}
    if not weights:
        raise CheckpointError(f"{path} holds no weights; use another file")
    if published.is_published(weights):
        return published.to_ours(weights)
    return {name.removeprefix("posenet."): tensor for name, tensor in weights.items()}


def unwrapped_name(name: str) -> str:
    """A parameter's name without what DataParallel, DistributedDataParallel and torch.compile add."""
    name = name.replace("_orig_mod.", "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name


def load_weights(
    model: nn.Module, path: str | Path, *, state: Mapping[str, Any] | None = None, least: float = 0.5
) -> LoadReport:
    """Copy what fits from a checkpoint into a model and report the rest.

    Args:
        path: our own checkpoint, a published one or a bare state dict, with any wrapper's prefixes.
        state: the file's content where it has been read already.
        least: smallest share of the model's tensors that must load.

    Raises:
        CheckpointError: unreadable, or less than ``least`` of the model fits.
    """
    given = extract_weights(read(path) if state is None else state, path)
    own = model.state_dict()
    report = _compare(own, given, path)
    if len(report.loaded) < least * len(own):
        raise CheckpointError(
            f"{path}: only {len(report.loaded)} of {len(own)} tensors fit this network; it is of another architecture"
        )
    model.load_state_dict(own | {n: given[n] for n in report.loaded})
    return report


def _compare(own: Mapping[str, Tensor], given: Mapping[str, Tensor], path: str | Path) -> LoadReport:
    return LoadReport(
        path=str(path),
        loaded=[n for n in own if n in given and given[n].shape == own[n].shape],
        missing=[n for n in own if n not in given],
        unexpected=[n for n in given if n not in own],
        reshaped=[n for n in own if n in given and given[n].shape != own[n].shape],
    )


def require_fitting_weights(config: Config, state: Mapping[str, Any], path: str | Path) -> None:
    """``CheckpointError`` unless the weights are of ``config``'s network; no memory is taken for one of any size."""
    with torch.device("meta"):
        own = PoseNet.from_config(config).state_dict()
    _compare(own, extract_weights(state, path), path).require_all()


def load_model(path: str | Path, config: Config | None = None) -> tuple[PoseNet, Config]:
    """Build the network a checkpoint belongs to and load it whole.

    Args:
        config: overrules the configuration that the checkpoint carries; a published file carries none
            and means the default network.

    Returns:
        The network on the CPU in eval mode, and its configuration.

    Raises:
        CheckpointError: unreadable, or weights that do not all fit.
    """
    state = read(path)
    config = config or config_of_checkpoint(state, path) or Config()
    require_fitting_weights(config, state, path)
    model = PoseNet.from_config(config)
    load_weights(model, path, state=state, least=0).require_all()
    return model.eval(), config


def config_of_checkpoint(state: Mapping[str, Any], path: str | Path) -> Config | None:
    """The configuration a checkpoint of ours carries, else None."""
    tables = state.get("config")
    model = tables.get("model") if isinstance(tables, dict) else None
    if isinstance(model, dict) and isinstance(name := model.get("skeleton"), str) and name != BUILT_IN:
        raise CheckpointError(f"{path} names a file as its skeleton, which no checkpoint does; use another one")
    return config_from_dict(tables, source=str(path)) if isinstance(tables, dict) else None


class CheckpointFolder:
    """The checkpoints of one run: ``step-N.pth``, the newest ``keep`` of them; ``last.pth`` and ``best.pth``.

    ``last`` and ``best`` are hard links of numbered files, which take room of their own once those are dropped.
    """

    def __init__(self, path: Path, keep: int = 3) -> None:
        self.path, self.keep, self._made = path, keep, False
        self.last, self.best = path / "last.pth", path / "best.pth"

    def holds_run(self) -> bool:
        return any(self.path.glob("*.pth"))

    def save(self, state: Mapping[str, Any], step: int, best: bool = False) -> None:
        """Write ``state`` as the newest checkpoint, and as the best one where it is.

        Args:
            step: optimizer steps of the run so far.

        Raises:
            CheckpointError, OSError: it cannot be written; what was there before is intact.
        """
        if self._made and not self.path.is_dir():
            _log.warning(
                "WARNING: %s was removed under the run; making it anew, with what is saved from now on", self.path
            )
        self.path.mkdir(parents=True, exist_ok=True)
        self._made = True
        for name in ("step-*", "last", "best"):
            for left_by_a_kill in self.path.glob(f".{name}.pth.*.tmp"):
                left_by_a_kill.unlink(missing_ok=True)
        numbered = self.path / f"step-{step:08d}.pth"
        write(numbered, state)
        _point(self.last, numbered)
        if best:
            _point(self.best, numbered)
        for old in self.history()[self.keep :]:
            old.unlink(missing_ok=True)

    def history(self) -> list[Path]:
        """The numbered checkpoints, newest first: by time, as a run may have gone back to an older one."""
        found = [p for p in self.path.glob("step-*.pth") if re.fullmatch(r"step-\d+\.pth", p.name)]
        return sorted(found, key=lambda p: (p.stat().st_mtime_ns, p.name), reverse=True)

    def newest_intact(
        self,
        wanted: Callable[[dict[str, Any]], bool] = lambda state: True,
    ) -> tuple[Path, dict[str, Any]] | None:
        """The newest checkpoint that can be read and is ``wanted``, with its content; None where there is none.

        Damaged ones are named in a warning.

        Raises:
            CheckpointError: there are checkpoints, all of them damaged.
        """
        candidates = [p for p in [self.last, *self.history(), self.best] if p.exists()]
        damaged = []
        for path in candidates:
            try:
                state = read(path)
            except (CheckpointError, OSError) as error:
                _log.warning("WARNING: %s", error)
                damaged.append(path)
                continue
            if not wanted(state):
                continue
            if damaged:
                _log.warning("WARNING: going on from %s instead", path)
            return path, state
        if damaged and len(damaged) == len(candidates):
            raise CheckpointError(f"every checkpoint in {self.path} is damaged; start anew in another folder")
        return None


def _point(name: Path, target: Path) -> None:
    """Make ``name`` the same file as ``target``, atomically; a copy where the file system has no hard links."""
    with atomic_replacement(name) as temporary:
        try:
            os.link(target, temporary)
        except OSError:
            shutil.copyfile(target, temporary)
