"""All settings of an experiment: one frozen dataclass per section, with defaults, units and bounds.

Defaults are stated only here. Each value is checked when its section is created; a value out of range raises a
``ValueError`` that names the key. ``reading`` builds these classes from TOML files and overrides.
"""

from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Literal, get_type_hints

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
MAX_SIDE = 2**16
"""Upper limit of heights and widths in pixels."""
MAX_COUNT = 10**9
"""Upper limit of settings that count epochs, steps or frames."""


def _is_input_size(size: int | tuple[int, int]) -> bool:
    """Whether the network accepts inputs of a size, one number for a square or (height, width)."""
    sides = size if isinstance(size, tuple) else (size,)
    return all(0 < side <= MAX_SIDE and side % INPUT_MULTIPLE == 0 for side in sides)


# Types of settings, each with a condition that ``_Section`` checks, and its words.
Share = Annotated[float, lambda value: 0 <= value <= 1, "from 0 to 1"]
OpenShare = Annotated[float, lambda value: 0 < value < 1, "between 0 and 1"]
NotNegative = Annotated[float, lambda value: value >= 0, "0 or more"]
Positive = Annotated[float, lambda value: value > 0, "positive"]
Count = Annotated[int, lambda value: 0 <= value <= MAX_COUNT, f"0 to {MAX_COUNT}"]
PositiveCount = Annotated[int, lambda value: 1 <= value <= MAX_COUNT, f"1 to {MAX_COUNT}"]
Seed = Annotated[int, lambda value: 0 <= value < 2**63, "0 to 2**63 - 1"]
BatchSize = Annotated[int, lambda value: 1 <= value <= 2**16, f"1 to {2**16}"]
Side = Annotated[int, lambda value: INPUT_MULTIPLE <= value <= MAX_SIDE, f"{INPUT_MULTIPLE} to {MAX_SIDE}"]
InputSize = Annotated[int | tuple[int, int], _is_input_size, f"multiples of {INPUT_MULTIPLE}, up to {MAX_SIDE}"]
Weights = Annotated[
    tuple[float, ...], lambda weights: not weights or (min(weights) >= 0 and sum(weights) > 0), "0 or more, not all 0"
]
CodeName = Annotated[str, lambda name: not name or is_name(name), '"module:name"']
Switch = Literal[True, False, "auto"]
"""On, off, or as it is best."""
ExifFrame = Literal["stored", "displayed"]
"""The frame of annotated coordinates: the pixels as stored in the file, or the image as viewers display it."""


class _Section:
    """Checks that the settings of a section are within the limits of their types."""

    def __post_init__(self) -> None:
        section = type(self).__name__.removesuffix("Config").lower()
        prefix = "of a data set, " if section == "dataset" else f"{section}."
        for name, kind in get_type_hints(type(self), globals(), include_extras=True).items():
            if hasattr(kind, "__metadata__"):
                is_allowed, words = kind.__metadata__
                if not is_allowed(getattr(self, name)):
                    raise ValueError(f"{prefix}{name} must be {words}")


@dataclass(frozen=True)
class ModelConfig(_Section):
    """``model``: the network."""

    stacks: Annotated[int, lambda number: 1 <= number <= 16, "1 to 16"] = 4
    """Number of hourglasses."""
    width: Annotated[int, lambda width: 16 <= width <= 4096 and width % 16 == 0, "a multiple of 16, up to 4096"] = 256
    """Channels at stride 4. The stem has first a quarter and then half of them."""
    growth: Annotated[int, lambda growth: 0 <= growth <= 4096 and growth % 2 == 0, "even, 0 to 4096"] = 128
    """Channels added at each coarser level of the hourglass."""
    conv_std: Positive = 0.05
    """Standard deviation of the initial weights of convolutions."""
    skeleton: Skeleton = COCO
    """Keypoints and body parts to predict: "coco", the name of a TOML file (docs/custom_data.md), or a table."""
    network: CodeName = ""
    """A network of your own in the place of ``PoseNet``, as "module:name" (docs/extending.md). The other settings mean
    what it makes of them."""


@dataclass(frozen=True)
class DataSetConfig(_Section):
    """A table of ``data.train`` or ``data.val``: one of several data sets that train one network."""

    path: Annotated[str | tuple[str, ...], lambda path: bool(path) and all(path), "a path, or a list of them"] = ""
    """Its store, with any skeleton that shares keypoints with ``model.skeleton``; or a list of stores."""
    name: str = ""
    """Its name in the log and in statistics; empty means that of the file."""
    weight: Positive = 1.0
    """An epoch draws ``weight`` times the set's number of samples from it: with 2 it draws every sample twice, with 0.5
    one half, and the other half in the next epoch. Only for training."""

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
class DataConfig(_Section):
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
    workers: Annotated[int, lambda number: 0 <= number <= 1024, "0 to 1024"] = 2
    """Worker processes of each data loader; 0 loads in the main process."""
    framing: Literal["person", "image"] = "person"
    """What a training sample shows: one main person at a fixed size, or the whole image."""
    background: Annotated[float, lambda share: 0 <= share < 1, "from 0 to below 1"] = 0.1
    """Share of the samples of an epoch that show images without people, if the stores contain any (build-hdf5
    --background); 0 leaves them out."""
    transform: CodeName = ""
    """A function of your own that changes every training sample, as "module:name" (docs/own_data_set.md)."""
    exif_frame: ExifFrame = "displayed"
    """Frame of the annotations of images with an EXIF orientation, where their annotated size fits both frames. The
    images are read as displayed, and annotations of the stored pixels are turned."""
    allow_overlap: bool = False
    """Allow images of data.val and data.val_images that are also trained on, to overfit on purpose."""


@dataclass(frozen=True)
class AugmentConfig(_Section):
    """``augment``: random changes to training samples."""

    jitter_probability: Share = 0.2
    """Share of the samples with shifted colours."""
    scale_probability: Share = 0.8
    """Share of the samples that are rescaled."""
    scale: Annotated[tuple[float, float], lambda scale: 0 < scale[0] <= scale[1], "[low, high], above 0"] = (0.7, 1.3)
    """Range of the scale factor."""
    degrees: NotNegative = 40.0
    """The rotation is uniform between minus and plus this many degrees."""
    shift: NotNegative = 50.0
    """The shift on each axis is uniform between minus and plus this many network-input pixels."""
    flip_probability: Share = 0.5
    """Share of the samples that are mirrored."""
    cutout_probability: Share = 0.0
    """Share of the samples of which a square is covered."""
    person_height: Positive = 0.6
    """Share of the input height that the main person's box fills before the random scale."""


@dataclass(frozen=True)
class TargetsConfig(_Section):
    """``targets``: the target maps. Sigmas are pixels of the network input."""

    keypoint_sigma: Positive = 9.0
    """Standard deviation of the Gaussian of a keypoint."""
    part_sigma: Positive = 7.0
    """Standard deviation of the Gaussian across a body part."""


@dataclass(frozen=True)
class LossConfig(_Section):
    """``loss``: the focal L2 loss."""

    function: CodeName = ""
    """A loss of your own in the place of the focal L2 loss, as "module:name" (docs/extending.md). The other settings
    mean what it makes of them."""
    gamma: Annotated[float, lambda gamma: gamma == 0 or gamma >= 1, "0 (plain L2) or at least 1"] = 1.0
    """Focal exponent, at least 1; or 0, which is plain L2. Between 0 and 1 the gradient would be infinite where a
    prediction is exact."""
    stack_weights: Weights = ()
    """One weight per stack; empty means equal weights."""


@dataclass(frozen=True)
class OptimConfig(_Section):
    """``optim``: the optimizer and the learning-rate schedule."""

    name: Literal["sgd", "adamw"] = "adamw"
    """Kind of optimizer."""
    lr: Positive = 1e-3
    """Learning rate of one process; see ``scale_lr``."""
    scale_lr: bool = True
    """Multiply the learning rate by the number of processes."""
    weight_decay: NotNegative = 1e-4
    """Weight decay of all parameters, BatchNorm and biases included."""
    warmup_epochs: NotNegative = 1.0
    """The learning rate rises linearly over this many epochs; 0 starts at the full rate."""
    schedule: Literal["step", "cosine"] = "cosine"
    """step: the learning rate drops every ``step_epochs``. cosine: it falls along half a cosine, to 0 at the end of the
    last epoch; a resumed run with another ``train.epochs`` continues on the longer or shorter curve."""
    step_epochs: Count = 15
    """Epochs between two drops of the learning rate; 0 keeps the rate constant."""
    step_factor: Annotated[float, lambda factor: 0 < factor <= 1, "above 0, up to 1"] = 0.2
    """Factor of each drop."""
    accumulate: PositiveCount = 1
    """Number of batches with averaged gradients for one optimizer step."""
    max_grad_norm: NotNegative = 1000.0
    """Clip the norm of the gradient to this value, which is above its usual values; 0 does not clip."""


@dataclass(frozen=True)
class TrainConfig(_Section):
    """``train``: the run."""

    batch_size: BatchSize = 4
    """Samples per process and batch."""
    epochs: PositiveCount = 100
    """Passes over the training set."""
    seed: Seed = 0
    """Seed of the initial weights, the order of the samples and their augmentation."""
    input_size: InputSize = 512
    """Network input in pixels: one number for a square, or [height, width]. With another one, change
    ``inference.height`` in the same ratio: the network finds people only of the sizes in training. ``posenet train
    data.yaml`` does so for a new run."""
    amp: Literal["auto", "off", "bf16", "fp16"] = "auto"
    """Precision of the network; off is float32. auto is bf16 on CUDA devices that compute in it natively, fp16 on
    others that are faster in it, and float32 on all else."""
    loss_scale: NotNegative = 0.0
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
    evaluate_every: Count = 1
    """Epochs between COCO evaluations; 0 never evaluates. Needs data.val_images and data.val_annotations."""
    patience: Count = 0
    """Stop after this many scores (AP, or the validation loss without AP) without a better one; 0 never stops."""

    @property
    def size(self) -> tuple[int, int]:
        """Network input (height, width)."""
        return self.input_size if isinstance(self.input_size, tuple) else (self.input_size, self.input_size)


@dataclass(frozen=True)
class DistillConfig(_Section):
    """``distill``: how a network learns from its teacher, ``train.teacher`` (docs/training.md)."""

    weight: Share = 0.5
    """Share of the teacher in the target maps where there are labels; 0 leaves them to the labels, 1 ignores the
    labels. Without labels, such as in images without annotations or on masked people, the teacher alone counts."""


@dataclass(frozen=True)
class ParallelConfig:
    """``parallel``: several devices, and compilation."""

    sync_bn: bool = False
    """Compute BatchNorm statistics over the batches of all processes."""
    compile: bool = False
    """Compile the training step's targets, network and loss with torch.compile: slow first steps, faster ones after
    them."""


@dataclass(frozen=True)
class AverageConfig(_Section):
    """``average``: averaging of the weights. The average is what is validated and saved."""

    kind: Literal["off", "ema", "swa"] = "off"
    """off: the weights themselves. ema: their exponential moving average. swa: the mean of the weights at the end of
    every cycle; needs frozen BatchNorm."""
    decay: OpenShare = 0.9998
    """Share of the old average that an optimizer step keeps (ema). It rises to this value over the first steps."""
    cycle_epochs: Count = 0
    """Epochs of a cycle, in which the learning rate falls from the first to the second value of ``cycle_lr``; 0 uses
    the schedule of ``optim``."""
    cycle_lr: Annotated[tuple[float, float], lambda rates: min(rates) > 0, "positive"] = (4e-5, 2e-5)
    """Learning rates of one process at the start and at the end of a cycle."""


@dataclass(frozen=True)
class GuardConfig(_Section):
    """``guard``: protection against exploding losses and gradients."""

    factor: Annotated[float, lambda factor: factor == 0 or factor > 1, "above 1, or 0 for no such limit"] = 12.0
    """A step is skipped, on all ranks, if its loss or its gradient is above this many times the median of the last good
    steps (docs/training.md), or not finite; 0 compares with no median."""
    threshold: Positive = 2e5
    """A step is also skipped if the loss of one of its batches is larger than this."""


@dataclass(frozen=True)
class CheckpointConfig(_Section):
    """``checkpoint``: where a run is saved, and when, in addition to the end of every epoch."""

    path: str = ""
    """Folder of the run; empty means checkpoints/<name of the experiment>."""
    every_steps: Count = 0
    """Optimizer steps between checkpoints; 0 is off."""
    every_minutes: NotNegative = 10.0
    """Minutes between checkpoints; 0 is off."""
    keep: PositiveCount = 3
    """Number of newest checkpoints to keep; the best one is kept as well."""


@dataclass(frozen=True)
class LogConfig(_Section):
    """``log``: what a run logs."""

    every_steps: PositiveCount = 20
    """Optimizer steps between log lines."""
    tensorboard: Switch = "auto"
    """Write TensorBoard events. ``auto`` does if TensorBoard is installed; with ``true``, a message says if it is
    not."""
    callbacks: Annotated[tuple[str, ...], lambda names: all(map(is_name, names)), '"module:name", one or more'] = ()
    """Logs of your own, each as "module:name" (docs/extending.md)."""


@dataclass(frozen=True)
class InferenceConfig(_Section):
    """``inference``: prediction."""

    height: Side = 512
    """Images are resized to this height, then padded to a multiple of 64."""
    scales: Annotated[tuple[float, ...], lambda scales: bool(scales) and min(scales) > 0, "one or more, positive"] = (
        1.0,
    )
    """The maps are averaged over inputs of these multiples of ``height``."""
    flip: bool = False
    """Average with the maps of the mirrored image."""
    max_height: Side = 2600
    """Upper limit of the height of the network input."""
    batch_size: BatchSize = 4
    """Images per batch."""
    keypoint_threshold: OpenShare = 0.1
    """Smallest peak value of a keypoint map that becomes a candidate."""


@dataclass(frozen=True)
class TrackingConfig(_Section):
    """``tracking``: the identities of people in videos."""

    confirm_frames: PositiveCount = 3
    """Frames in which a person must be seen before it gets an id."""
    smooth: bool = False
    """Remove the jitter of keypoints."""


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
        if len(self.loss.stack_weights) not in (0, self.model.stacks):
            raise ValueError("loss.stack_weights needs one number per stack (model.stacks)")
        if self.average.kind == "swa" and not self.average.cycle_epochs:
            raise ValueError("average.kind = swa averages at the end of every cycle; set average.cycle_epochs")


USUAL_HEIGHTS = 0.6, 1.6
"""Smallest and largest height for prediction, as multiples of the height in training, that need no advice."""


def advise_on_height(config: Config) -> str:
    """What to say where people are predicted much larger or smaller than they were trained; empty elsewhere.

    The network finds nobody then, and the AP, the best checkpoint and the drawings follow from that.
    """
    inference, (train_height, _) = config.inference, config.train.size
    scale = min(inference.scales, key=lambda scale: abs(scale - 1))
    height = inference.height * scale
    if USUAL_HEIGHTS[0] <= height / train_height <= USUAL_HEIGHTS[1]:
        return ""
    return (
        f"training has images of height {train_height} (train.input_size), but the AP and predictions use "
        f"{height:g} (inference.height), where people have another size; --set "
        f"inference.height={nearest_height(train_height / scale)} makes them agree"
    )


def nearest_height(height: float) -> int:
    """The allowed height that is nearest to another one and fits the network without padding."""
    return min(max(round(height / INPUT_MULTIPLE), 1) * INPUT_MULTIPLE, MAX_SIDE)
