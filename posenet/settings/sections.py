"""All settings of an experiment: one frozen dataclass per section, with defaults, units and bounds.

Defaults are stated only here. Each value is checked when its section is created; a value out of range raises a
``ValueError`` that names the key. ``reading`` builds these classes from TOML files and overrides.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from posenet.extensions import is_name
from posenet.skeleton import COCO, Skeleton

MAP_STRIDE = 4
"""Input pixels per map cell on each axis: the stride of the finest maps."""
INPUT_MULTIPLE = 64
"""Input heights and widths are multiples of this, because the coarsest maps have stride 64."""
PADDING = 128
"""Value of the padding of images for prediction, in all three colour channels."""
NUM_SCALES = 5
"""Resolutions at which every stack predicts: strides 4, 8, 16, 32 and 64."""
MAX_COUNT = 10**9
"""Upper limit of settings that count epochs, steps or frames."""
COUNT = 0, MAX_COUNT
SHARE = 0, 1
NOT_NEGATIVE = 0, math.inf
POSITIVE = math.ulp(0.0), math.inf  # from the smallest number above 0 on
MAX_SEED = 2**63 - 1
MAX_BATCH = 2**16
MAX_SIDE = 2**16
"""Upper limit of heights and widths in pixels."""
MAX_TASKS = 1024
"""Upper limit of processes."""
Switch = Literal[True, False, "auto"]
"""On, off, or as it is best."""
ExifFrame = Literal["stored", "displayed"]
"""The frame of annotated coordinates: the pixels as stored in the file, or the image as viewers display it."""


def _check(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition is true."""
    if not condition:
        raise ValueError(message)


def _check_ranges(section: object, name: str, **ranges: tuple[float, float]) -> None:
    """Raise ``ValueError`` unless the settings of a section are in their ranges, limits included."""
    for key, (low, high) in ranges.items():
        expected = {NOT_NEGATIVE: "not be negative", POSITIVE: "be positive"}.get((low, high), f"be {low} to {high}")
        _check(low <= getattr(section, key) <= high, f"{name}.{key} must {expected}")


def _check_code(key: str, name: str) -> None:
    """Raise ``ValueError`` unless a name of code is empty or has the right form."""
    _check(not name or is_name(name), f'{key} must be "module:name", not {name!r}')


def _is_input_size(size: tuple[int, int]) -> bool:
    """Whether the network accepts inputs of a (height, width)."""
    return all(0 < side <= MAX_SIDE and side % INPUT_MULTIPLE == 0 for side in size)


@dataclass(frozen=True)
class ModelConfig:
    """``model``: the network."""

    stacks: int = 4
    """Number of hourglasses."""
    width: int = 256
    """Channels at stride 4. The stem has first a quarter and then half of them."""
    growth: int = 128
    """Channels added at each coarser level of the hourglass."""
    conv_std: float = 0.05
    """Standard deviation of the initial weights of convolutions."""
    skeleton: Skeleton = COCO
    """Keypoints and body parts to predict: "coco", the name of a TOML file (docs/custom_data.md), or a table."""
    network: str = ""
    """A network of your own in the place of ``PoseNet``, as "module:name" (docs/extending.md). The other settings mean
    what it makes of them."""

    def __post_init__(self) -> None:
        _check_code("model.network", self.network)
        _check_ranges(self, "model", stacks=(1, 16), conv_std=POSITIVE)
        _check(16 <= self.width <= 4096 and self.width % 16 == 0, "model.width must be a multiple of 16, up to 4096")
        _check(0 <= self.growth <= 4096 and self.growth % 2 == 0, "model.growth must be even, 0 to 4096")


@dataclass(frozen=True)
class DataSetConfig:
    """A table of ``data.train`` or ``data.val``: one of several data sets that train one network."""

    path: str | tuple[str, ...] = ""
    """Its store, with any skeleton that shares keypoints with ``model.skeleton``; or a list of stores."""
    name: str = ""
    """Its name in the log and in statistics; empty means that of the file."""
    weight: float = 1.0
    """An epoch draws ``weight`` times the set's number of samples from it: with 2 it draws every sample twice, with 0.5
    one half, and the other half in the next epoch. Only for training."""

    def __post_init__(self) -> None:
        _check(bool(self.path) and all(self.path), "a table of data.train or data.val needs a path")
        _check(0 < self.weight < math.inf, f"the weight of a data set must be positive, not {self.weight:g}")

    @property
    def paths(self) -> tuple[str, ...]:
        """Its stores."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def label(self) -> str:
        """The name, or the name of the first file without its suffix."""
        return self.name or PurePath(self.paths[0]).stem


DataSets = str | tuple[str | DataSetConfig, ...]
"""A store; or a list of stores, each a path or a table."""


@dataclass(frozen=True)
class DataConfig:
    """``data``: the data sets and how they are read."""

    train: DataSets = ""
    """Training store (.h5), or a list of several. An item of the list is a path, or a table {path = "coco.h5", weight =
    1.0, name = "coco"}, also written as [[data.train]]. The keypoints of a table are matched by name; its samples do
    not supervise keypoints that it lacks."""
    val: DataSets = ""
    """Validation store (.h5) for the validation loss, in the same forms."""
    val_images: str = ""
    """Folder of COCO images, for AP during training."""
    val_annotations: str = ""
    """COCO keypoint JSON, for AP during training."""
    workers: int = 2
    """Worker processes of each data loader; 0 loads in the main process."""
    framing: Literal["person", "image"] = "person"
    """What a training sample shows: one main person at a fixed size, or the whole image."""
    background: float = 0.1
    """Share of the samples of an epoch that show images without people, if the stores contain any (build-hdf5
    --background); 0 leaves them out."""
    transform: str = ""
    """A function of your own that changes every training sample, as "module:name" (docs/own_data_set.md)."""
    exif_frame: ExifFrame = "displayed"
    """Frame of the annotations of images with an EXIF orientation, where their annotated size fits both frames. The
    images are read as displayed, and annotations of the stored pixels are turned."""
    allow_overlap: bool = False
    """Allow images of data.val and data.val_images that are also trained on, to overfit on purpose."""

    def __post_init__(self) -> None:
        _check_data_sets("data.train", self.train)
        _check_data_sets("data.val", self.val)
        if not isinstance(self.val, str):
            weights = [item.weight for item in self.val if isinstance(item, DataSetConfig)]
            _check(set(weights) <= {1.0}, "data.val: validation reads every sample once; leave out the weights")
        _check_ranges(self, "data", workers=(0, MAX_TASKS))
        _check(0 <= self.background < 1, "data.background must be from 0 to below 1")
        _check_code("data.transform", self.transform)


def _check_data_sets(key: str, value: DataSets) -> None:
    """Raise ``ValueError`` for a list that is empty or names a file or a data set twice."""
    if isinstance(value, str):
        return
    _check(len(value) > 0, f"{key} must be a path, or a list that is not empty")
    labels = Counter(item.label for item in value if isinstance(item, DataSetConfig))
    paths = Counter(path for item in value for path in (item.paths if isinstance(item, DataSetConfig) else (item,)))
    for kind, counts in (("path", paths), ("name", labels)):
        for repeated in (text for text, count in counts.items() if count > 1):
            raise ValueError(f"{key} has the {kind} {repeated} twice; give every data set once, with a name of its own")


@dataclass(frozen=True)
class AugmentConfig:
    """``augment``: random changes to training samples."""

    jitter_probability: float = 0.2
    """Share of the samples with shifted colours."""
    scale_probability: float = 0.8
    """Share of the samples that are rescaled."""
    scale: tuple[float, float] = (0.7, 1.3)
    """Range of the scale factor."""
    degrees: float = 40.0
    """The rotation is uniform between minus and plus this many degrees."""
    shift: float = 50.0
    """The shift on each axis is uniform between minus and plus this many network-input pixels."""
    flip_probability: float = 0.5
    """Share of the samples that are mirrored."""
    cutout_probability: float = 0.0
    """Share of the samples of which a square is covered."""
    person_height: float = 0.6
    """Share of the input height that the main person's box fills before the random scale."""

    def __post_init__(self) -> None:
        _check_ranges(self, "augment", jitter_probability=SHARE, scale_probability=SHARE, flip_probability=SHARE)
        _check_ranges(self, "augment", cutout_probability=SHARE, degrees=NOT_NEGATIVE, shift=NOT_NEGATIVE)
        _check_ranges(self, "augment", person_height=POSITIVE)
        _check(0 < self.scale[0] <= self.scale[1], "augment.scale must be [low, high], above 0")


@dataclass(frozen=True)
class TargetsConfig:
    """``targets``: the target maps. Sigmas are pixels of the network input."""

    keypoint_sigma: float = 9.0
    """Standard deviation of the Gaussian of a keypoint."""
    part_sigma: float = 7.0
    """Standard deviation of the Gaussian across a body part."""

    def __post_init__(self) -> None:
        _check_ranges(self, "targets", keypoint_sigma=POSITIVE, part_sigma=POSITIVE)


@dataclass(frozen=True)
class LossConfig:
    """``loss``: the focal L2 loss."""

    function: str = ""
    """A loss of your own in the place of the focal L2 loss, as "module:name" (docs/extending.md). The other settings
    mean what it makes of them."""
    gamma: float = 1.0
    """Focal exponent, at least 1; or 0, which is plain L2."""
    stack_weights: tuple[float, ...] = ()
    """One weight per stack; empty means equal weights."""

    def __post_init__(self) -> None:
        _check_code("loss.function", self.function)
        # Between 0 and 1 the gradient is infinite where a prediction is exact.
        _check(self.gamma == 0 or self.gamma >= 1, "loss.gamma must be 0 (plain L2) or at least 1")
        valid = not self.stack_weights or (min(self.stack_weights) >= 0 and sum(self.stack_weights) > 0)
        _check(valid, "loss.stack_weights must not be negative and not all zero")


@dataclass(frozen=True)
class OptimConfig:
    """``optim``: the optimizer and the learning-rate schedule."""

    name: Literal["sgd", "adamw"] = "adamw"
    """Kind of optimizer."""
    lr: float = 1e-3
    """Learning rate of one process; see ``scale_lr``."""
    scale_lr: bool = True
    """Multiply the learning rate by the number of processes."""
    weight_decay: float = 1e-4
    """Weight decay of all parameters, BatchNorm and biases included."""
    warmup_epochs: float = 1.0
    """The learning rate rises linearly over this many epochs; 0 starts at the full rate."""
    schedule: Literal["step", "cosine"] = "cosine"
    """step: the learning rate drops every ``step_epochs``. cosine: it falls along half a cosine, to 0 at the end of the
    last epoch; a resumed run with another ``train.epochs`` continues on the longer or shorter curve."""
    step_epochs: int = 15
    """Epochs between two drops of the learning rate; 0 keeps the rate constant."""
    step_factor: float = 0.2
    """Factor of each drop."""
    accumulate: int = 1
    """Number of batches with averaged gradients for one optimizer step."""
    max_grad_norm: float = 1000.0
    """Clip the norm of the gradient to this value, which is above its usual values; 0 does not clip."""

    def __post_init__(self) -> None:
        _check_ranges(self, "optim", weight_decay=NOT_NEGATIVE, warmup_epochs=NOT_NEGATIVE, max_grad_norm=NOT_NEGATIVE)
        _check_ranges(self, "optim", lr=POSITIVE, step_epochs=COUNT, accumulate=(1, MAX_COUNT))
        _check(0 < self.step_factor <= 1, "optim.step_factor must be in (0, 1]")


@dataclass(frozen=True)
class TrainConfig:
    """``train``: the run."""

    batch_size: int = 4
    """Samples per process and batch."""
    epochs: int = 100
    """Passes over the training set."""
    seed: int = 0
    """Seed of the initial weights, the order of the samples and their augmentation."""
    input_size: int | tuple[int, int] = 512
    """Network input in pixels: one number for a square, or [height, width]. With another one, change
    ``inference.height`` in the same ratio: the network finds people only of the sizes in training. ``posenet train
    data.yaml`` does so for a new run."""
    amp: Literal["auto", "off", "bf16", "fp16"] = "auto"
    """Precision of the network; off is float32. auto is bf16 on accelerators that compute in it natively, fp16 on
    others that are faster in it, and float32 on a CPU."""
    loss_scale: float = 0.0
    """Fixed loss scale for fp16; 0 adapts it."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps and so on; auto selects an accelerator if there is one."""
    channels_last: Switch = "auto"
    """Keep the weights in channels-last memory layout; auto does on accelerators in bf16 and fp16."""
    tf32: bool = True
    """Let CUDA devices round float32 to TF32 in convolutions; this concerns the precision off."""
    deterministic: bool = False
    """Use only deterministic algorithms of PyTorch and its libraries, so that a run can be repeated to the bit on the
    same accelerator. This is slower. A run on CPUs can always be repeated."""
    freeze: tuple[str, ...] = ()
    """Glob patterns over parameter names, or "all-but-heads"."""
    weights: str = ""
    """Checkpoint to fine-tune from: a file, or a name that ``posenet weights list`` shows."""
    teacher: str = ""
    """Checkpoint of a stronger network to learn from, in the same forms; see ``distill``."""
    evaluate_every: int = 1
    """Epochs between COCO evaluations; 0 never evaluates. Needs data.val_images and data.val_annotations."""
    patience: int = 0
    """Stop after this many scores (AP, or the validation loss without AP) without a better one; 0 never stops."""

    def __post_init__(self) -> None:
        _check_ranges(self, "train", batch_size=(1, MAX_BATCH), epochs=(1, MAX_COUNT), seed=(0, MAX_SEED))
        _check_ranges(self, "train", evaluate_every=COUNT, patience=COUNT, loss_scale=NOT_NEGATIVE)
        allowed = f"a multiple of {INPUT_MULTIPLE}, up to {MAX_SIDE}, or two of them"
        _check(_is_input_size(self.size), f"train.input_size must be {allowed}")

    @property
    def size(self) -> tuple[int, int]:
        """Network input (height, width)."""
        return self.input_size if isinstance(self.input_size, tuple) else (self.input_size, self.input_size)


@dataclass(frozen=True)
class DistillConfig:
    """``distill``: how a network learns from its teacher, ``train.teacher`` (docs/training.md)."""

    weight: float = 0.5
    """Share of the teacher in the target maps where there are labels; 0 leaves them to the labels, 1 ignores the
    labels. Without labels, such as in images without annotations or on masked people, the teacher alone counts."""
    input_size: int | tuple[int, int] = 0
    """Input of the teacher in pixels, in the form of ``train.input_size``; 0 means ``train.input_size``."""

    def __post_init__(self) -> None:
        _check_ranges(self, "distill", weight=SHARE)
        allowed = f"0, a multiple of {INPUT_MULTIPLE}, up to {MAX_SIDE}, or two of them"
        _check(self.size is None or _is_input_size(self.size), f"distill.input_size must be {allowed}")

    @property
    def size(self) -> tuple[int, int] | None:
        """Input (height, width) of the teacher; None for that of the network."""
        if isinstance(self.input_size, tuple):
            return self.input_size
        return (self.input_size, self.input_size) if self.input_size else None


@dataclass(frozen=True)
class ParallelConfig:
    """``parallel``: several devices, and compilation."""

    sync_bn: bool = False
    """Compute BatchNorm statistics over the batches of all processes."""
    compile: bool = False
    """Compile the training step's targets, network and loss with torch.compile: slow first steps, faster ones after
    them."""


@dataclass(frozen=True)
class AverageConfig:
    """``average``: averaging of the weights. The average is what is validated and saved."""

    kind: Literal["off", "ema", "swa"] = "off"
    """off: the weights themselves. ema: their exponential moving average. swa: the mean of the weights at the end of
    every cycle; needs frozen BatchNorm."""
    decay: float = 0.9998
    """Share of the old average that an optimizer step keeps (ema). It rises to this value over the first steps."""
    cycle_epochs: int = 0
    """Epochs of a cycle, in which the learning rate falls from the first to the second value of ``cycle_lr``; 0 uses
    the schedule of ``optim``."""
    cycle_lr: tuple[float, float] = (4e-5, 2e-5)
    """Learning rates of one process at the start and at the end of a cycle."""

    def __post_init__(self) -> None:
        _check(0 < self.decay < 1, "average.decay must be between 0 and 1")
        _check_ranges(self, "average", cycle_epochs=COUNT)
        _check(min(self.cycle_lr) > 0, "average.cycle_lr must be positive")
        _check(
            self.kind != "swa" or self.cycle_epochs > 0,
            "average.kind = swa averages at the end of every cycle; set average.cycle_epochs",
        )


@dataclass(frozen=True)
class GuardConfig:
    """``guard``: protection against exploding losses and gradients."""

    factor: float = 12.0
    """A step is skipped, on all ranks, if its loss or its gradient is above this many times the median of the last good
    steps (docs/training.md), or not finite; 0 compares with no median."""
    threshold: float = 2e5
    """A step is also skipped if the loss of one of its batches is larger than this."""

    def __post_init__(self) -> None:
        _check(self.factor == 0 or self.factor > 1, "guard.factor must be above 1, or 0 for no such limit")
        _check_ranges(self, "guard", threshold=POSITIVE)


@dataclass(frozen=True)
class CheckpointConfig:
    """``checkpoint``: where a run is saved, and when, in addition to the end of every epoch."""

    path: str = ""
    """Folder of the run; empty means checkpoints/<name of the experiment>."""
    every_steps: int = 0
    """Optimizer steps between checkpoints; 0 is off."""
    every_minutes: float = 10.0
    """Minutes between checkpoints; 0 is off."""
    keep: int = 3
    """Number of newest checkpoints to keep; the best one is kept as well."""

    def __post_init__(self) -> None:
        _check_ranges(self, "checkpoint", every_steps=COUNT, every_minutes=NOT_NEGATIVE, keep=(1, MAX_COUNT))


@dataclass(frozen=True)
class LogConfig:
    """``log``: what a run logs."""

    every_steps: int = 20
    """Optimizer steps between log lines."""
    tensorboard: Switch = "auto"
    """Write TensorBoard events. ``auto`` does if TensorBoard is installed; with ``true``, a message says if it is
    not."""
    callbacks: tuple[str, ...] = ()
    """Logs of your own, each as "module:name" (docs/extending.md)."""

    def __post_init__(self) -> None:
        for name in self.callbacks:
            _check_code("log.callbacks", name)
        _check_ranges(self, "log", every_steps=(1, MAX_COUNT))


@dataclass(frozen=True)
class InferenceConfig:
    """``inference``: prediction."""

    height: int = 512
    """Images are resized to this height, then padded to a multiple of 64."""
    scales: tuple[float, ...] = (1.0,)
    """The maps are averaged over inputs of these multiples of ``height``."""
    flip: bool = False
    """Average with the maps of the mirrored image."""
    max_height: int = 2600
    """Upper limit of the height of the network input."""
    batch_size: int = 4
    """Images per batch."""
    keypoint_threshold: float = 0.1
    """Smallest peak value of a keypoint map that becomes a candidate."""

    def __post_init__(self) -> None:
        side = INPUT_MULTIPLE, MAX_SIDE
        _check_ranges(self, "inference", height=side, max_height=side, batch_size=(1, MAX_BATCH))
        _check(bool(self.scales) and all(s > 0 for s in self.scales), "inference.scales must be positive")
        _check(0 < self.keypoint_threshold < 1, "inference.keypoint_threshold must be in (0, 1)")


@dataclass(frozen=True)
class TrackingConfig:
    """``tracking``: the identities of people in videos."""

    confirm_frames: int = 3
    """Frames in which a person must be seen before it gets an id."""
    smooth: bool = False
    """Remove the jitter of keypoints."""

    def __post_init__(self) -> None:
        _check_ranges(self, "tracking", confirm_frames=(1, MAX_COUNT))


@dataclass(frozen=True)
class Config:
    """All sections of an experiment; the attribute names are the section names in TOML files."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    augment: AugmentConfig = AugmentConfig()
    targets: TargetsConfig = TargetsConfig()
    loss: LossConfig = LossConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    distill: DistillConfig = DistillConfig()
    parallel: ParallelConfig = ParallelConfig()
    average: AverageConfig = AverageConfig()
    guard: GuardConfig = GuardConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    inference: InferenceConfig = InferenceConfig()
    tracking: TrackingConfig = TrackingConfig()

    def __post_init__(self) -> None:
        num_weights = len(self.loss.stack_weights)
        _check(num_weights in (0, self.model.stacks), "loss.stack_weights needs one number per stack (model.stacks)")
        # The coarsest maps have one cell per INPUT_MULTIPLE pixels, and BatchNorm cannot train on a single cell.
        _check(
            self.train.batch_size > 1 or max(self.train.size) > INPUT_MULTIPLE or self.parallel.sync_bn,
            f"train.batch_size must be at least 2 where train.input_size is {INPUT_MULTIPLE}: BatchNorm needs 2 cells",
        )
