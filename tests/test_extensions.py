"""Networks, losses and callbacks of users, which settings name: trained, evaluated, and never run unasked."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import posenet
from posenet import extensions
from posenet.checkpoints.file import read_checkpoint
from posenet.checkpoints.weights import load_model, stored_config
from posenet.cli import main as cli
from posenet.devices.runtime import Runtime
from posenet.errors import ConfigError
from posenet.extensions import allow, load_extension
from posenet.inference.networks import TorchNetwork
from posenet.inference.predictor import Predictor
from posenet.model.fused import FusedNetwork
from tests.helpers.process_groups import errors_in_processes
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import TINY, Stores, coco_settings, data_settings, train_tiny, weights

NETWORK = """
from torch import nn
from posenet.model.posenet import PoseNet

class Changed(PoseNet):
    def __init__(self, settings):
        super().__init__(settings)
        self.extra = nn.Conv2d(settings.width, settings.width, 3, padding=1)

    def _predict(self, images, num_scales):
        x = self.extra(self.stem(images))
        return [self.stacks[0](x, num_scales)[0]]

class NoMaps(nn.Module):
    def __init__(self, config):
        super().__init__()

class OtherShape(Changed):
    def heatmaps(self, images):
        return super().heatmaps(images)[:, :3]

def make(config):
    return Changed(config.model)
"""
LOSS = """
from posenet import FocalL2Loss

class Doubled(FocalL2Loss):
    def forward(self, predictions, target, mask_miss):
        return 2 * super().forward(predictions, target, mask_miss)

def absolute(predictions, target, mask):
    return sum(((stack[0].float() - target).abs() * mask).sum((1, 2, 3)) for stack in predictions)

def named(predictions, target, mask):
    return {"absolute": absolute(predictions, target, mask)}

def total(predictions, target, mask):
    return absolute(predictions, target, mask).sum()
"""
LOG = """
import posenet

class Writes(posenet.TrainingCallback):
    def on_start(self, config, folder):
        self.path = folder / "own.txt"

    def on_step(self, step, values):
        with open(self.path, "a") as file:
            print(step, file=file)

def make():
    return Writes()

ready = Writes()
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of experiments with the code that they name; it is not the current one."""
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    for name, text in {"own_network": NETWORK, "own_loss": LOSS, "own_log": LOG}.items():
        (experiments / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(extensions, "_folders", {})
    yield experiments
    for name in ("own_network", "own_loss", "own_log", "trap"):
        sys.modules.pop(name, None)


def write_experiment(folder: Path, text: str) -> Path:
    path = folder / "own.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("pair", "found"),
    [
        ("model.network=own_network:NoMaps", "own_network:NoMaps"),
        ("model.network=own_network:OtherShape", "own_network:OtherShape"),
        ("model.network=own_network:missing", "own_network:missing"),
        ("loss.function=own_loss:total", r"total.*\(\)"),
        ("loss.function=own_loss:named", "named.*dict"),
        ('log.callbacks=["own_log:number"]', "own_log:number"),
    ],
)
def test_what_is_no_network_loss_or_callback_is_refused(pair: str, found: str, folder: Path, stores: Stores) -> None:
    allow(pair.partition("=")[2].strip('[]"'), folder)
    with pytest.raises(ConfigError, match=found):
        train_tiny(stores, folder / "run", pair, max_steps=1)


class TestNetwork:
    @pytest.mark.parametrize("name", ["Changed", "make"])
    def test_it_is_trained_evaluated_and_resumed_by_its_experiment(
        self, name: str, folder: Path, stores: Stores, tiny_coco: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        experiment = write_experiment(folder, f'[model]\nstacks=1\nwidth=16\ngrowth=2\nnetwork = "own_network:{name}"')
        settings = [*TINY, *data_settings(stores), *coco_settings(tiny_coco), "train.epochs=1"]
        flags = ["-p", "run", "--device", "cpu", "--set", *settings]
        assert cli.main(["train", "--config", str(experiment), *flags]) == 0
        [epoch] = read_log(Path("run"), "epoch")
        assert epoch["val_loss"] > 0 and "AP" in epoch
        assert "extra.weight" in weights(Path("run"))
        assert f"model.network=own_network:{name}" in Path("run/log.txt").read_text().splitlines()[-1]
        annotations = next(pair.partition("=")[2] for pair in settings if pair.startswith("data.val_annotations="))
        data = ["--images", str(tiny_coco / "val2017"), "--annotations", annotations, "--device", "cpu"]
        named = ["--set", f"model.network=own_network:{name}"]
        assert cli.main(["evaluate", "--checkpoint", "run/best.pth", *data, *named]) == 0
        assert cli.main(["train", "--config", str(experiment), "--resume", "run", "--epochs", "2"]) == 0
        assert read_checkpoint("run/last.pth")["progress"]["epoch"] == 2
        capsys.readouterr()

    def test_prediction_runs_it_as_it_is(self, folder: Path, stores: Stores) -> None:
        """The fast paths are those of PoseNet: a class that is derived from it may compute its maps in another way."""
        allow("own_network:Changed", folder)
        train_tiny(stores, folder, "model.network=own_network:Changed", max_steps=1)
        network, _ = load_model(folder / "last.pth")
        images = torch.rand(1, 3, 64, 64)
        with torch.inference_mode():
            assert torch.allclose(FusedNetwork(network).heatmaps(images), network.heatmaps(images), atol=1e-4)
        predictor = Predictor(folder / "last.pth", backend="auto", device="cpu")
        assert isinstance(predictor.network, TorchNetwork)
        assert type(predictor.network.network).__name__ == "Changed"


class TestLoss:
    def test_what_is_read_is_what_trains(self, folder: Path, stores: Stores) -> None:
        write_experiment(folder, "")
        allow("own_loss:Doubled", folder)
        allow("own_loss:absolute", folder)
        losses = {}
        for name in ("", "own_loss:Doubled", "own_loss:absolute"):
            run = folder / f"run_{name[9:]}"
            train_tiny(stores, run, f"loss.function={name}", "optim.lr=1e-30", "train.epochs=1", "train.batch_size=7")
            losses[name] = [read_log(run, kind)[-1][key] for kind, key in (("train", "loss"), ("epoch", "val_loss"))]
        assert losses["own_loss:Doubled"] == pytest.approx([2 * loss for loss in losses[""]])
        assert losses["own_loss:absolute"] != pytest.approx(losses[""])

    def test_ranks_with_other_code_are_refused(self, folder: Path, stores: Stores, tmp_path: Path) -> None:
        other = tmp_path / "other"
        other.mkdir()
        (other / "own_loss.py").write_text(LOSS.replace("abs()", "square()"))

        def check(runtime: Runtime) -> None:
            allow("own_loss:absolute", other if runtime.rank else folder)
            train_tiny(stores, tmp_path / "run", "loss.function=own_loss:absolute", runtime=runtime, max_steps=1)

        errors = errors_in_processes(2, tmp_path / "results", check)
        assert errors[0].startswith(
            "ConfigError: the processes differ in the code of loss.function: 'own_loss:absolute"
        )
        assert errors[1].startswith("OtherRankError: ")

    def test_the_guard_forgets_losses_of_other_code(self, folder: Path, stores: Stores, tmp_path: Path) -> None:
        write_experiment(folder, "")
        settings = ("loss.function=own_loss:absolute", "guard.threshold=1e9", "guard.factor=1e6")
        allow("own_loss:absolute", folder)
        for steps, expected in ((2, 2), (3, 3), (4, 1)):
            if steps == 4:
                (folder / "own_loss.py").write_text(LOSS.replace("abs()", "abs() * 1e5"))
                sys.modules.pop("own_loss")
            train_tiny(stores, tmp_path / "run", *settings, resume=True, max_steps=steps)
            assert len(read_checkpoint(tmp_path / "run" / "last.pth")["guard"]["losses"]) == expected, steps


class TestCallbacks:
    @pytest.mark.parametrize("name", ["Writes", "make", "ready"])
    def test_they_are_classes_functions_or_objects(self, name: str, folder: Path, stores: Stores) -> None:
        experiment = write_experiment(folder, f'[log]\ncallbacks = ["own_log:{name}"]')
        pairs = [*TINY, *data_settings(stores), "checkpoint.path=run"]
        posenet.train(experiment, pairs, max_steps=2, progress=False)
        assert Path("run/own.txt").read_text() == "1\n2\n"


class TestTrust:
    """A file of others names code: it is not imported unless the user names it too."""

    KEYS = ("model.network=trap:Trap", "loss.function=trap:Trap", "data.transform=trap:Trap")

    @pytest.fixture
    def trap(self, folder: Path) -> Path:
        """A module in the current folder that leaves a file when it is imported."""
        Path("trap.py").write_text('open("sprung", "w").close()\ndef Trap(*arguments):\n    raise SystemExit(3)\n')
        return Path("sprung")

    @pytest.mark.parametrize("pair", [*KEYS, 'log.callbacks=["trap:Trap"]'])
    def test_code_of_a_checkpoint_is_not_run(self, pair: str, trap: Path, stores: Stores, tmp_path: Path) -> None:
        train_tiny(stores, tmp_path / "run", max_steps=1)
        foreign = read_checkpoint("run/last.pth")
        section, _, key = pair.partition("=")[0].partition(".")
        foreign["config"][section][key] = ("trap:Trap",) if key == "callbacks" else "trap:Trap"
        torch.save(foreign, "run/last.pth")
        with pytest.raises(ConfigError, match=rf"{section}.{key}.*trap:Trap"):
            posenet.train(None, resume="run/last.pth", max_steps=2, progress=False)
        assert stored_config("run/last.pth") is not None
        if key == "network":
            with pytest.raises(ConfigError, match="model.network=trap:Trap"):
                Predictor("run/last.pth", device="cpu")
            train_tiny(stores, tmp_path / "tuned", "train.weights=run/last.pth", max_steps=1)
            pytest.importorskip("posenet.training.teacher")
            with pytest.raises(ConfigError, match="model.network=trap:Trap"):
                train_tiny(stores, tmp_path / "taught", "train.teacher=run/last.pth", max_steps=1)
        assert not trap.exists()

    def test_another_module_of_the_same_name_is_refused(self, folder: Path, tmp_path: Path) -> None:
        """Python imports a module once for each name: the experiments of two folders would share the first one."""
        other = tmp_path / "others"
        other.mkdir()
        (other / "own_loss.py").write_text("def absolute(*arguments):\n    return 0\n")
        allow("own_loss:absolute", folder)
        load_extension("loss.function", "own_loss:absolute")
        allow("own_loss:absolute", other)
        with pytest.raises(ConfigError, match="own_loss.py"):
            load_extension("loss.function", "own_loss:absolute")

    def test_an_error_of_the_code_is_named(self, folder: Path) -> None:
        (folder / "trap.py").write_text("import no_such_package\n")
        allow("trap:Trap", folder)
        with pytest.raises(ConfigError, match="loss.function=trap:Trap.*no_such_package.*install"):
            load_extension("loss.function", "trap:Trap")
