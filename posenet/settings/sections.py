"""Experiment settings: frozen dataclasses with their defaults, units and bounds.

Values are checked at construction: one out of range is a ``ValueError`` that names its key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from posenet.settings.sections_model import INPUT_MULTIPLE, ModelConfig
from posenet.settings.sections_model import check as _check
from posenet.settings.sections_run import CheckpointConfig, GuardConfig, LogConfig
from posenet.settings.sections_scale import AverageConfig, ParallelConfig


@dataclass(frozen=True)
class DataConfig:
    train: str = ""
    """Training store (.h5)."""
    val: str = ""
    """Validation store (.h5), for the validation loss."""
    val_images: str = ""
    """COCO image folder for AP during training."""
    val_annotations: str = ""
    """COCO keypoint JSON for AP during training."""
    workers: int = 2
    framing: Literal["person", "image"] = "person"
    """What a training sample shows: one main person at a fixed size, or the whole image."""
    allow_overlap: bool = False
    """Let the validation store hold training images (for overfitting on purpose)."""
    max_unreadable: float = 0.01
    """Share of the samples, rounded up, that may be replaced in an epoch because they cannot be read."""

    def __post_init__(self) -> None:
        _check(self.workers >= 0, "data.workers must not be negative")
        _check(0 <= self.max_unreadable <= 1, "data.max_unreadable must lie between 0 and 1")


@dataclass(frozen=True)
class AugmentConfig:
    jitter_probability: float = 0.2
    jitter_hue: tuple[float, float] = (-10.0, 10.0)
    """Added to OpenCV's hue (0-180); saturation and value are 0-255."""
    jitter_saturation: tuple[float, float] = (-20.0, 60.0)
    jitter_value: tuple[float, float] = (-20.0, 40.0)
    scale_probability: float = 0.8
    scale: tuple[float, float] = (0.7, 1.3)
    degrees: float = 40.0
    """Rotation is uniform in plus or minus this."""
    shift: float = 50.0
    """Shift on each axis is uniform in plus or minus this many network-input pixels."""
    flip_probability: float = 0.5
    person_height: float = 0.6
    """Share of the input height that the main person's box fills before the random scale."""

    def __post_init__(self) -> None:
        for name in ("jitter_probability", "scale_probability", "flip_probability"):
            _check(0 <= getattr(self, name) <= 1, f"augment.{name} must lie between 0 and 1")
        for name in ("jitter_hue", "jitter_saturation", "jitter_value", "scale"):
            low, high = getattr(self, name)
            _check(low <= high, f"augment.{name} must be [low, high]")
        _check(self.scale[0] > 0, "augment.scale must be positive")
        _check(self.degrees >= 0 and self.shift >= 0, "augment.degrees and augment.shift must not be negative")
        _check(self.person_height > 0, "augment.person_height must be positive")


@dataclass(frozen=True)
class TargetsConfig:
    """Sigmas and margins are pixels of the network input."""

    keypoint_sigma: float = 9.0
    part_sigma: float = 7.0
    part_margin: float = 4.0
    """How far a body part's rectangle reaches beyond its two keypoints."""
    threshold: float = 0.015
    """Keypoint maps end, and body-part maps fall to ``part_floor``, below this response."""
    part_floor: float = 0.01

    def __post_init__(self) -> None:
        _check(self.keypoint_sigma > 0 and self.part_sigma > 0, "targets.*_sigma must be positive")
        _check(self.part_margin >= 0, "targets.part_margin must not be negative")
        _check(0 < self.threshold < 1, "targets.threshold must lie in (0, 1)")
        _check(0 <= self.part_floor <= 1, "targets.part_floor must lie between 0 and 1")


@dataclass(frozen=True)
class LossConfig:
    gamma: float = 2.0
    """Focal exponent; 0 is plain L2."""
    stack_weights: tuple[float, ...] = ()
    """One weight per stack; empty means equal."""
    scale_weights: tuple[float, ...] = (0.1, 0.2, 0.4, 1.6, 6.4)
    """Fine to coarse."""
    part_weight: float = 1.0
    keypoint_weight: float = 3.0
    mask_weight: float = 0.1
    foreground_weight: float = 1.0
    positive_threshold: float = 0.01
    """Target values from here up count as foreground in the focal factor."""

    def __post_init__(self) -> None:
        # Between 0 and 1 the gradient is infinite where a prediction is exact.
        _check(self.gamma == 0 or self.gamma >= 1, "loss.gamma must be 0 (plain L2) or at least 1")
        _check(len(self.scale_weights) == 5, "loss.scale_weights needs five numbers, fine to coarse")
        for name in ("part_weight", "keypoint_weight", "mask_weight", "foreground_weight"):
            _check(getattr(self, name) >= 0, f"loss.{name} must not be negative")
        for name in ("stack_weights", "scale_weights"):
            weights = getattr(self, name)
            _check(
                all(w >= 0 for w in weights) and (not weights or sum(weights) > 0),
                f"loss.{name} must not be negative and not all zero",
            )


@dataclass(frozen=True)
class OptimConfig:
    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 2.5e-4
    """Learning rate of one process; see ``scale_lr``."""
    scale_lr: bool = True
    """Multiply the learning rate by the number of processes."""
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 3.0
    step_epochs: int = 15
    """The learning rate falls every so many epochs; 0 keeps it."""
    step_factor: float = 0.2
    restart_epoch: int = 0
    """Start the step schedule anew at this epoch; 0 never does."""
    restart_lr: float = 0.0
    """Learning rate from the restart on; 0 means ``lr``."""
    restart_step_epochs: int = 0
    """Step length after the restart; 0 means ``step_epochs``."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one optimizer step."""
    max_grad_norm: float = 0.0
    """Clip the gradient's norm to this; 0 is off."""

    def __post_init__(self) -> None:
        for name in (
            "momentum",
            "weight_decay",
            "warmup_epochs",
            "step_epochs",
            "restart_epoch",
            "restart_lr",
            "restart_step_epochs",
            "max_grad_norm",
        ):
            _check(getattr(self, name) >= 0, f"optim.{name} must not be negative")
        _check(self.lr > 0, "optim.lr must be positive")
        _check(self.momentum < 1, "optim.momentum must be below 1")
        _check(0 < self.step_factor <= 1, "optim.step_factor must lie in (0, 1]")
        _check(self.accumulate >= 1, "optim.accumulate must be at least 1")


@dataclass(frozen=True)
class TrainConfig:
    batch_size: int = 4
    """Samples per process and batch."""
    epochs: int = 100
    seed: int = 0
    input_size: int | tuple[int, int] = 512
    """Network input in pixels: one number for a square, or [height, width]."""
    amp: Literal["off", "bf16", "fp16"] = "off"
    loss_scale: float = 0.0
    """Fixed loss scale for fp16; 0 is dynamic."""
    device: str = "auto"
    channels_last: bool = False
    threads: int = 0
    """CPU threads of the network; 0 leaves PyTorch's choice."""
    freeze: tuple[str, ...] = ()
    """Glob patterns over parameter names, or "all-but-heads"."""
    weights: str = ""
    """Fine-tune from this checkpoint."""
    evaluate_every: int = 1
    """Epochs between COCO evaluations (0: never); needs data.val_images and data.val_annotations."""
    patience: int = 0
    """Stop after so many epochs without a better score (AP where evaluated, else the validation loss); 0 never."""

    def __post_init__(self) -> None:
        _check(self.batch_size >= 1, "train.batch_size must be at least 1")
        _check(self.epochs >= 1, "train.epochs must be at least 1")
        for name in ("seed", "evaluate_every", "patience", "loss_scale", "threads"):
            _check(getattr(self, name) >= 0, f"train.{name} must not be negative")
        _check(
            all(side > 0 and side % INPUT_MULTIPLE == 0 for side in self.size),
            f"train.input_size must be positive multiples of {INPUT_MULTIPLE}",
        )
        # The coarsest maps have a cell per STRIDE pixels, and BatchNorm cannot train on a single one.
        _check(
            self.batch_size > 1 or max(self.size) > INPUT_MULTIPLE,
            f"train.batch_size must be at least 2 where train.input_size is {INPUT_MULTIPLE}: BatchNorm needs two cells",
        )

    @property
    def size(self) -> tuple[int, int]:
        """Network input (height, width)."""
        return self.input_size if isinstance(self.input_size, tuple) else (self.input_size, self.input_size)


@dataclass(frozen=True)
class InferenceConfig:
    height: int = 512
    """Images are resized to this height, then padded to a multiple of 64."""
    scales: tuple[float, ...] = (1.0,)
    """Maps are averaged over these multiples of ``height``."""
    flip: bool = False
    """Average with the maps of the mirrored image."""
    max_height: int = 2600
    max_width: int = 3800
    """The resized image is held below these."""
    batch_size: int = 4
    keypoint_threshold: float = 0.1
    """Smallest peak of a keypoint map that counts."""
    part_threshold: float = 0.1
    """A limb needs more support by its body-part map than this."""

    def __post_init__(self) -> None:
        _check(self.height >= INPUT_MULTIPLE, f"inference.height must be at least {INPUT_MULTIPLE}")
        _check(bool(self.scales) and all(s > 0 for s in self.scales), "inference.scales must be positive")
        _check(
            min(self.max_height, self.max_width) >= INPUT_MULTIPLE, f"inference.max_* must be at least {INPUT_MULTIPLE}"
        )
        _check(self.batch_size >= 1, "inference.batch_size must be at least 1")
        for name in ("keypoint_threshold", "part_threshold"):
            _check(0 < getattr(self, name) < 1, f"inference.{name} must lie in (0, 1)")


@dataclass(frozen=True)
class Config:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    targets: TargetsConfig = field(default_factory=TargetsConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    average: AverageConfig = field(default_factory=AverageConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)

    def __post_init__(self) -> None:
        weights = self.loss.stack_weights
        _check(
            not weights or len(weights) == self.model.stacks,
            "loss.stack_weights needs one number per stack (model.stacks)",
        )
