"""Checkpoints: prefixes, partial loading, damage, foreign files and what a run's folder keeps."""

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from posenet.checkpoints.checkpoint_folder import CheckpointFolder
from posenet.checkpoints.file import read_checkpoint, write_checkpoint
from posenet.checkpoints.weights import load_model, load_weights, strip_wrapper_prefixes
from posenet.errors import CheckpointError
from posenet.model import published_names as published
from posenet.model.posenet import PoseNet
from posenet.settings import config_to_dict, load_config

TINY = load_config(None, ["model.stacks=1", "model.width=16", "model.growth=2"])


@pytest.fixture
def model() -> PoseNet:
    torch.manual_seed(0)
    model = PoseNet.from_config(TINY)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "posenet.",
        "module.posenet.",
        "_orig_mod.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "module.module.",
    ],
)
def test_any_wrapper_prefix_loads_everything(model, tmp_path, prefix):
    path = tmp_path / "wrapped.pth"
    torch.save({"model": {prefix + n: t for n, t in model.state_dict().items()}}, path)
    fresh = PoseNet.from_config(TINY)
    report = load_weights(fresh, path)
    assert same(fresh, model)
    assert not report.missing + report.unexpected + report.reshaped


def test_compiled_submodules_are_unwrapped():
    assert strip_wrapper_prefixes("module.stem._orig_mod.entry.weight") == "stem.entry.weight"


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_published_file_loads_whatever_its_pickle(model, tmp_path, prefix, legacy):
    path = tmp_path / "PoseNet_52_epoch.pth"
    weights = {prefix + n: t for n, t in published.rename_to_published(model.state_dict()).items()}
    optimizer = {"state": {}, "param_groups": []}
    content = {"weights": weights, "optimizer_weight": optimizer, "train_loss": 1.0, "epoch": 52}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    loaded, _ = load_model(path, TINY)
    assert same(loaded, model)


def test_bare_state_dict_loads(model, tmp_path):
    path = tmp_path / "bare.pth"
    torch.save(model.state_dict(), path)
    fresh = PoseNet.from_config(TINY)
    load_weights(fresh, path)
    assert same(fresh, model)


def test_load_model_uses_the_configuration_inside(model, tmp_path):
    path = tmp_path / "own.pth"
    torch.save({"model": model.state_dict(), "config": config_to_dict(TINY)}, path)
    loaded, config = load_model(path)
    assert same(loaded, model) and config == TINY and not loaded.training


def test_fine_tuning_reports_what_did_not_fit(model, tmp_path):
    path = tmp_path / "other.pth"
    weights = dict(model.state_dict())
    names = list(weights)
    del weights[names[0]]
    weights["extra.weight"] = torch.zeros(3)
    weights[names[1]] = torch.zeros(99)
    torch.save({"model": weights}, path)
    fresh = PoseNet.from_config(TINY)
    kept = fresh.state_dict()[names[0]].clone()
    report = load_weights(fresh, path)
    assert (report.missing, report.unexpected, report.reshaped) == ([names[0]], ["extra.weight"], [names[1]])
    assert torch.equal(fresh.state_dict()[names[0]], kept)
    assert torch.equal(fresh.state_dict()[names[5]], model.state_dict()[names[5]])
    assert "missing 1" in str(report) and "reshaped 1" in str(report)
    with pytest.raises(CheckpointError, match="another architecture"):
        report.require_all()


def test_too_little_loaded_is_an_error_and_changes_nothing(model, tmp_path):
    path = tmp_path / "wide.pth"
    wide = PoseNet.from_config(load_config(None, ["model.stacks=1", "model.width=32", "model.growth=6"]))
    torch.save({"model": wide.state_dict()}, path)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(CheckpointError, match="another architecture"):
        load_weights(model, path)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())


def test_another_architecture_is_refused_by_load_model(model, tmp_path):
    path = tmp_path / "one.pth"
    torch.save({"model": model.state_dict(), "config": config_to_dict(TINY)}, path)
    with pytest.raises(CheckpointError, match="another architecture"):
        load_model(path, load_config(None, ["model.stacks=2", "model.width=16", "model.growth=2"]))


class Malicious:
    """Unpickling this the unsafe way creates a file."""

    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("legacy", [False, True])
def test_code_in_a_pickle_is_never_run(tmp_path, legacy):
    path, trace = tmp_path / "evil.pth", tmp_path / "executed"
    torch.save({"model": Malicious(str(trace))}, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(CheckpointError, match="never run"):
        read_checkpoint(path)
    assert not trace.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_plain_pickle_with_code_is_never_run(tmp_path):
    path, trace = tmp_path / "evil.pkl", tmp_path / "executed"
    path.write_bytes(pickle.dumps(Malicious(str(trace))))
    with pytest.raises(CheckpointError):
        read_checkpoint(path)
    assert not trace.exists()


def _foreign_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")


@pytest.mark.parametrize(
    "make",
    [
        lambda p: p.write_bytes(b""),
        lambda p: p.write_text("not a checkpoint"),
        lambda p: p.write_bytes(os.urandom(5000)),
        lambda p: torch.save([1, 2, 3], p),
        lambda p: torch.save({"model": {}}, p),
        lambda p: torch.save({"format": 99, "model": {}}, p),
        _foreign_zip,
        lambda p: p.mkdir(),
        lambda p: None,
    ],
)
def test_foreign_files_are_named_in_one_line(tmp_path, make):
    path = tmp_path / "foreign.pth"
    make(path)
    with pytest.raises(CheckpointError) as error:
        load_weights(PoseNet.from_config(TINY), path)
    assert "foreign.pth" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_checkpoint_is_recognised(model, tmp_path, share):
    path = tmp_path / "cut.pth"
    write_checkpoint(path, {"model": model.state_dict()})
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError):
        read_checkpoint(path)


def test_flipped_bit_in_a_tensor_is_recognised(model, tmp_path):
    path = tmp_path / "bit.pth"
    write_checkpoint(path, {"model": model.state_dict()})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(path)


def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "last.pth"
    write_checkpoint(path, {"step": 1})

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        write_checkpoint(path, {"step": 2})
    assert torch.load(path, weights_only=True) == {"step": 1}
    assert os.listdir(tmp_path) == ["last.pth"]


def test_folder_keeps_the_newest_and_the_best(tmp_path):
    folder = CheckpointFolder(tmp_path / "run", keep=2)
    assert not folder.has_checkpoints()
    for step in range(1, 6):
        folder.save({"step": step}, step, best=step == 2)
    assert {p.name for p in folder.path.iterdir()} == {"step-00000005.pth", "step-00000004.pth", "last.pth", "best.pth"}
    assert read_checkpoint(folder.last)["step"] == 5 and read_checkpoint(folder.best)["step"] == 2
    assert folder.has_checkpoints()


def test_damaged_last_falls_back_loudly(tmp_path, caplog):
    folder = CheckpointFolder(tmp_path, keep=3)
    for step in (1, 2, 3):
        folder.save({"step": step}, step)
    folder.last.write_bytes(b"damaged")  # the same file as step 3
    path, state = folder.newest_intact()
    assert state["step"] == 2 and path.name == "step-00000002.pth"
    assert "last.pth" in caplog.text and "step-00000002.pth" in caplog.text


def test_going_back_to_an_older_checkpoint_makes_a_new_history(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=3)
    for second, step in enumerate((200, 300, 400, 210)):
        folder.save({"step": step}, step)
        os.utime(folder.path / f"step-{step:08d}.pth", (second, second))
    assert next(p.name for p in folder.history()) == "step-00000210.pth"
    assert {p.name for p in folder.history()} >= {"step-00000210.pth", "step-00000400.pth"}


def test_leftovers_of_a_kill_are_swept_and_never_written_through(tmp_path):
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    for name in ("last", "step-00000009"):
        os.link(folder.best, tmp_path / f".{name}.pth.{os.getpid()}.tmp")
    (tmp_path / ".last.pth.1.tmp").write_bytes(b"half")
    at_work = tmp_path / ".weights.pth.1.tmp"  # of another program, which exports into the folder
    at_work.write_bytes(b"half")
    folder.save({"step": 2}, 2)
    assert at_work.exists()
    at_work.unlink()
    assert read_checkpoint(folder.best)["step"] == 1 and read_checkpoint(folder.last)["step"] == 2
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_full_disk_is_said_in_one_line(tmp_path, monkeypatch):
    def full(*_):
        raise RuntimeError("[enforce fail at inline_container.cc:672] . PytorchStreamWriter failed")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(CheckpointError, match="free disk space"):
        write_checkpoint(tmp_path / "last.pth", {})
    assert not os.listdir(tmp_path)


def test_only_damaged_checkpoints_is_an_error(tmp_path):
    (tmp_path / "last.pth").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match="damaged"):
        CheckpointFolder(tmp_path).newest_intact()
    assert CheckpointFolder(tmp_path / "empty").newest_intact() is None


def test_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    folder = CheckpointFolder(tmp_path)
    folder.save({"step": 1}, 1, best=True)
    assert read_checkpoint(folder.last) == read_checkpoint(folder.best) == {"step": 1}


def test_a_folder_in_place_of_a_checkpoint_is_told_apart_from_nothing_at_all(tmp_path):
    with pytest.raises(CheckpointError, match="is a folder; name a file in it, such as last.pth"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="none.pth is not a file; check the path"):
        read_checkpoint(tmp_path / "none.pth")
