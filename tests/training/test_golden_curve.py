"""The full recipe on fixed data: losses, rates, and how far the weights and their average move, as measured once.

After an intended change of the recipe, write the numbers again: ``python -m tests.training.test_golden_curve``.
"""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.drawn_data import build_both
from tests.helpers.drawn_people import write_dataset
from tests.helpers.run_logs import read_log
from tests.helpers.tiny_training import Stores, last, train_tiny, weights

GOLDEN = Path(__file__).parents[1] / "fixtures" / "loss_curve.json"
RECIPE = (
    "model.stacks=2",
    "model.conv_std=0.1",
    "train.input_size=128",
    "train.batch_size=7",
    "train.epochs=3",
    "train.freeze=['*norm*']",
    "optim.lr=1e-3",
    "optim.scale_lr=true",
    "optim.warmup_epochs=1",
    "optim.step_epochs=2",
    "optim.max_grad_norm=20",
    "optim.weight_decay=0.05",
    "average.kind=ema",
    "average.decay=0.9",
)
"""SGD with momentum, weight decay, warm-up, a falling rate, clipping, the average of the weights and all augmentation.

The statistics of BatchNorm are frozen. Those of a few values enlarge rounding errors, which differ between processors,
to a sixth of the distances; with frozen ones the numbers of all processors agree to a millionth.
"""

TOLERANCE = 1e-3
"""More than the differences between versions of OpenCV, whose warped images differ in single grey levels."""


def run_recipe(stores: Stores, folder: Path) -> dict[str, list[float]]:
    """Train; return the numbers of every step and of every epoch, and the distances that the weights move."""
    train_tiny(stores, folder / "start", *RECIPE, "optim.lr=1e-30", max_steps=1)
    train_tiny(stores, folder / "run", *RECIPE)
    start, end = weights(folder / "start"), last(folder / "run")
    steps, epochs = read_log(folder / "run", "train"), read_log(folder / "run", "epoch")
    return {
        "loss": [step["loss"] for step in steps],
        "lr": [step["lr"] for step in steps],
        "val_loss": [epoch["val_loss"] for epoch in epochs],
        "distances": [distance(end["average"]["trained"], start), distance(end["model"], start)],
    }


def distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """Between the weights of the convolutions of two networks."""
    names = [name for name, tensor in some.items() if tensor.ndim == 4]
    return torch.stack([(some[name] - others[name]).norm() for name in names]).norm().item()


def test_the_recipe_gives_the_stored_curves(stores: Stores, tmp_path: Path) -> None:
    golden = json.loads(GOLDEN.read_text())
    curves = run_recipe(stores, tmp_path)
    assert curves.keys() == golden.keys()
    for name, values in curves.items():
        assert values == pytest.approx(golden[name], rel=TOLERANCE), name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_dataset(Path(name, "coco"), train=6, val=3, seed=23)
        curves = run_recipe(build_both(Path(name, "coco")), Path(name, "run"))
    lines = (f' "{name}": {[float(f"{value:.6g}") for value in values]}' for name, values in curves.items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
