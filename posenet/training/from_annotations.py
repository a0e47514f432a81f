"""From annotations as they are to a trained network: the sequence of steps behind ``posenet train data.yaml``.

``prepare`` makes stores of the annotations, in the subfolder ``data`` of the folder of the run, unless those that are
there fit the data. ``train`` then trains on them with what ``choose_experiment`` chooses, and ``conclude`` evaluates
the best checkpoint. Every step calls the public function of a tool and logs one line.

Importing this module does not import PyTorch.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import multiprocessing
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posenet.annotations.adjustments import MAX_LINE
from posenet.annotations.coco import AnnotationFile, read_document
from posenet.annotations.find_annotations import find_annotations, is_yolo
from posenet.annotations.people import people_of, select_main_persons
from posenet.annotations.reader import read_annotation_file
from posenet.annotations.skeleton_draft import COMMENTS, draft_skeleton
from posenet.annotations.split import split_annotations
from posenet.checkpoints.folder import CheckpointFolder, run_lock
from posenet.data.build import build_store
from posenet.data.store_list import count_background
from posenet.errors import CheckpointError, ConfigError, DataError
from posenet.files import read_input, sha256_of, write_atomically
from posenet.images import require_image_folder, write_image
from posenet.inference.evaluation import evaluate
from posenet.messages import command_line, pluralize
from posenet.settings import Config, ExifFrame, load_config
from posenet.settings.reading import DATA_KEYS, apply_override
from posenet.settings.sections import nearest_height
from posenet.skeleton import COCO, Skeleton, load_skeleton
from posenet.skeleton.skeleton import list_names
from posenet.skeleton.skeleton_file import BUILT_IN, skeleton_to_toml
from posenet.training.inputs import RUNS_FOLDER, Experiment
from posenet.visualization.sheets import sheet_of_samples

VALIDATION_SHARE = 0.1
"""Share of the images that is split off for validation."""
MAX_STORED_SIDE = 1536
"""Images with a longer side, in pixels, are stored smaller: three times the largest input of an experiment."""
WARNINGS_FILE = "warnings.txt"
"""What was left out of the stores, and what may be wrong with their annotations, one line each."""
CHECKSUM_FILE = "checksum.txt"
"""File with the checksum of the data from which the stores beside it are built; it is written last."""
FEW_IMAGES = 20  # an AP of fewer images depends on chance more than on the network

PLAIN_NAME = re.compile(
    "data|dataset|annotations|result|train|val(id)?|person_keypoints.*|_annotations.*", re.IGNORECASE
)
"""What annotation files are called that are not told from others by their names: a run takes that of the folder."""

_log = logging.getLogger(__name__)


class PreparedData(NamedTuple):
    """Data that are ready for training."""

    folder: Path  # of the run
    overrides: tuple[str, ...]  # settings of the run: its folder, its data and its skeleton
    images: Path  # folder of the validation images
    annotations: Path  # their COCO keypoint file
    settings: Config  # those that were given, without an experiment those of tiny
    skeleton: Path
    warnings: tuple[str, ...]  # one line each, to be repeated beside the AP

    @property
    def is_started(self) -> bool:
        """Whether the folder contains checkpoints of the run."""
        return CheckpointFolder(self.folder).has_checkpoints()


class _Source(NamedTuple):
    """The annotations of one split."""

    split: str  # train or val
    path: Path  # a copy in the folder of the run
    document: dict[str, Any]  # in COCO's shape
    images: Path


def prepare(
    source: str | Path,
    overrides: Sequence[str] = (),
    *,
    images: str | Path | None = None,
    val: str | Path | None = None,
    val_images: str | Path | None = None,
    experiment: Experiment = None,
    resume: bool | str | Path = False,
) -> PreparedData:
    """Import, check and split annotations, draft their skeleton, and build their stores in the folder of the run.

    What is there already, and fits the data, stays as it is. The arguments are those of ``train``.

    Raises:
        CheckpointError: the folder of the run is in use, or contains a run with other data.
        ConfigError: a setting is not valid, a folder of images is given that the annotations name already, or
            ``resume`` is a path.
        DataError: the annotations or the images cannot be used.
    """
    if not isinstance(resume, bool):
        raise ConfigError("with annotations, a run continues in its folder; leave out --resume PATH")
    for image_folder in (images, val_images):
        if image_folder is not None:
            require_image_folder(image_folder)
    source = Path(source)
    train_file, val_file = find_annotations(source, None if val is None else Path(val))
    settings, given = load_config(experiment or "tiny", overrides), _settings_of(overrides)
    for key in DATA_KEYS:
        if f"data.{key}" in given:
            raise ConfigError(f"data.{key} names other data than {source}; leave out one of the two")
    folder = Path(settings.checkpoint.path or RUNS_FOLDER / name_of_run(source))
    files = folder / "data"
    skeleton = given.get("model.skeleton") or str(files / "skeleton.toml")
    is_file = isinstance(skeleton, str) and (skeleton == BUILT_IN or Path(skeleton).exists())
    if not (is_file if given.get("model.skeleton") else settings.model.skeleton == COCO):
        raise ConfigError(
            "with annotations, the skeleton is drafted, not that of the experiment; model.skeleton is the name of a "
            "TOML file, or coco: give --set model.skeleton=FILE.toml"
        )
    with run_lock(folder):
        files.mkdir(exist_ok=True)
        sources = _read_sources(train_file, val_file, images, val_images, files)
        checksum_file = files / CHECKSUM_FILE
        checksum = _checksum(sources, Path(skeleton), settings.data.exif_frame)
        is_same = checksum_file.exists() and read_input(checksum_file) == checksum
        names = ("train.h5", "val.h5", "train.json", "val.json", WARNINGS_FILE)
        if is_same and all((files / name).exists() for name in names):
            # The parent of --nproc, which has prepared them, has reported it.
            level = logging.INFO if multiprocessing.parent_process() is None else logging.DEBUG
            _log.log(level, "The data have not changed: using the stores and the skeleton in %s", files)
        elif not is_same and CheckpointFolder(folder).has_checkpoints():
            own = command_line("train", "--resume", folder / "last.pth")
            raise CheckpointError(
                f"{folder} already contains a run, which has begun with other data than {source} has now, or "
                "another skeleton; begin another one with --set checkpoint.path=DIR, or continue with its own data: "
                f"{own}"
            )
        else:
            if not is_same:  # else a build that is interrupted would be of the same data
                checksum_file.unlink(missing_ok=True)
            for one in sources:
                write_atomically(one.path, json.dumps(one.document).encode())
            _make_stores(files, sources, Path(skeleton), settings.data.exif_frame)
    warnings = tuple(read_input(files / WARNINGS_FILE).decode().splitlines())
    values: dict[str, object] = {
        "checkpoint.path": folder,
        "data.train": files / "train.h5",
        "data.val": files / "val.h5",
        "data.val_images": sources[-1].images,
        "data.val_annotations": files / "val.json",
        "model.skeleton": skeleton,
    }
    # The best checkpoint and the drawings come from the epochs with an AP.
    if not settings.train.evaluate_every and "train.evaluate_every" not in given:
        values["train.evaluate_every"] = 5
    # A text in JSON is one in TOML, too.
    pairs = tuple(f"{key}={json.dumps(value, ensure_ascii=False, default=str)}" for key, value in values.items())
    return PreparedData(folder, pairs, sources[-1].images, files / "val.json", settings, Path(skeleton), warnings)


def name_of_run(source: Path) -> str:
    """The name of the folder or file; that of the folder for a file called data.yaml, train.json and so on."""
    path = source.resolve()
    if path.is_dir():
        return path.name
    names = (path.stem, *(folder.name for folder in path.parents))
    return next((name for name in names if name and not PLAIN_NAME.fullmatch(name)), "run")


def _settings_of(overrides: Sequence[str]) -> dict[str, Any]:
    """The values that overrides give to settings, by their names."""
    tables: dict[str, Any] = {}
    for pair in overrides:
        apply_override(tables, pair)
    return {f"{section}.{key}": value for section, table in tables.items() for key, value in table.items()}


def _read_sources(
    train_file: Path, val_file: Path | None, images: str | Path | None, val_images: str | Path | None, files: Path
) -> list[_Source]:
    """The annotations for training and, if they are given, for validation."""
    sources = [_read_source(train_file, "train", images, files)]
    if val_file is None:
        return sources
    try:
        own_images = val_images or (None if is_yolo(val_file) else images)
        return [*sources, _read_source(val_file, "val", own_images, files)]
    except DataError as error:
        from posenet.annotations.importing.yolo_pose import MissingPlaceError

        if val_file != train_file or not isinstance(error, MissingPlaceError):
            raise
        _log.warning("%s: a part of train is split off for validation", error)
        return sources


def _read_source(file: Path, split: str, images: str | Path | None, files: Path) -> _Source:
    """Read annotations in any format as a document in COCO's shape."""
    try:
        from posenet.annotations.importing.formats import read_annotations
    except ModuleNotFoundError:  # a part of the package that may be left out: then only COCO's own format is read
        document, folder = read_document(file), Path(images or file.parent)
    else:
        part = split if is_yolo(file) else None
        frames = files / f"{split}_frames"
        document, folder, notes = read_annotations(file, images=images, split=part, frames=frames)
        for note in notes:
            _log.warning("%s", textwrap.shorten(f"{file.name}: {note}", MAX_LINE))
    return _Source(split, files / f"imported_{split}.json", document, folder)


def _checksum(sources: Sequence[_Source], skeleton: Path, exif_frame: ExifFrame) -> bytes:
    """A text that is another one if annotations, sizes or times of images, or the file of the skeleton have changed."""
    digest = hashlib.sha256(exif_frame.encode())
    if skeleton.exists():
        digest.update(sha256_of(skeleton).encode())
    for source in sources:
        digest.update(json.dumps(source.document).encode() + str(source.images.resolve()).encode())
        for image in source.document["images"]:
            path = source.images / str(image.get("file_name"))
            status = path.stat() if path.is_file() else None
            digest.update(repr(status and (status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest().encode()


def _make_stores(files: Path, sources: Sequence[_Source], skeleton_file: Path, exif_frame: ExifFrame) -> None:
    """Read the annotations, draft the skeleton if there is none, split them if they are not, and build the stores."""
    warnings: list[str] = []
    read = functools.partial(_read, exif_frame=exif_frame, warnings=warnings)
    if str(skeleton_file) == BUILT_IN or skeleton_file.exists():
        known = load_skeleton(skeleton_file)
        annotations = [read(source, known) for source in sources]
    else:
        train = read(sources[0], None)
        draft = _draft(train)
        if len(train.groups_of_names()) > 1:  # some may be the skeleton's, in another order
            images, content = sources[0].images, train.document
            train = read_annotation_file(train.path, draft, folder=images, document=content)
        annotations = [train, *(read(source, draft) for source in sources[1:])]
        _write_draft(draft, skeleton_file)  # only now: the names may be corrected in either file
    checksum = _checksum(sources, skeleton_file, exif_frame)  # before the builds, during which data may change
    skeleton = load_skeleton(skeleton_file)
    if len(sources) == 1:
        annotations = _split(annotations[0], sources[0].images, skeleton)
    for split, file, folder in zip(("train", "val"), annotations, (sources[0].images, sources[-1].images)):
        _build(split, file, folder, files, skeleton, warnings)
    write_atomically(files / WARNINGS_FILE, "".join(f"{line}\n" for line in warnings).encode())
    write_atomically(files / CHECKSUM_FILE, checksum)


def _read(source: _Source, skeleton: Skeleton | None, exif_frame: ExifFrame, warnings: list[str]) -> AnnotationFile:
    """Read annotations in the normal form, and log what that took; ``DataError`` if they contradict themselves."""
    file = read_annotation_file(
        source.path,
        skeleton,
        folder=source.images,
        exif_frame=exif_frame,
        opens_images=True,
        document=source.document,
    )
    for adjustment in file.adjustments.sorted():
        level = {"contradiction": logging.ERROR, "derived": logging.INFO}.get(adjustment.kind, logging.WARNING)
        _log.log(level, "%s", adjustment)
        if level == logging.WARNING:
            warnings.append(f"{source.split}: {adjustment}")
    file.adjustments.refuse(source.path)
    _log.info("Read %s: %s", source.path.name, file.describe())
    return file


def _draft(file: AnnotationFile) -> Skeleton:
    """Draft the skeleton of the category with most annotations; it is COCO's if the keypoints are COCO's."""
    counts = Counter(file.columns.category_rows.tolist())
    ranked = [file.categories.parsed[row] for row, _ in counts.most_common() if file.categories.parsed[row].keypoints]
    others = [category.name for category in ranked if category.keypoints != ranked[0].keypoints]
    draft = draft_skeleton(file, ranked[0].name if others else None)
    if others:
        text = "Only %s is trained, not %s, which have other keypoints; to choose: annotations skeleton --category NAME"
        _log.warning(text, ranked[0].name, list_names(list(dict.fromkeys(others))))
    if draft.file_names == COCO.file_names:
        return dataclasses.replace(COCO, category_id=draft.category_id)
    return draft


def _write_draft(skeleton: Skeleton, output: Path) -> None:
    write_atomically(output, skeleton_to_toml(skeleton, {} if skeleton == COCO else COMMENTS).encode())
    counts = pluralize(skeleton.num_keypoints, "keypoint"), pluralize(skeleton.num_parts, "part")
    pairs = pluralize(len(skeleton.left_right), "pair of left and right", "pairs of left and right")
    _log.info("Drafted %s: %s, %s, %s", output, *counts, pairs)


def _split(file: AnnotationFile, folder: Path, skeleton: Skeleton) -> list[AnnotationFile]:
    """Split off images with somebody to train on for validation."""
    people = people_of(file, skeleton).people
    usable = {number for number in people if select_main_persons(people[number], skeleton.min_labelled_keypoints)}
    # Where no image has a main person, the build says what those with labelled keypoints lack.
    parts = split_annotations(file, (1 - VALIDATION_SHARE, VALIDATION_SHARE), folder, usable or None)
    text = "Split off %d of %s for validation, by a checksum of their names; --val FILE names your own"
    _log.info(text, len(parts[1].images), pluralize(len(file.images), "image"))
    return parts


def _build(
    split: str, file: AnnotationFile, images: Path, files: Path, skeleton: Skeleton, warnings: list[str]
) -> None:
    """Write the annotations and the store of a split, and log what it contains and lacks."""
    path = files / f"{split}.json"
    write_atomically(path, json.dumps(file.document).encode())
    people = people_of(dataclasses.replace(file, path=path), skeleton)
    output = path.with_suffix(".h5")
    report = build_store(images, people, output, overwrite=True, max_side=MAX_STORED_SIDE, background=True)
    store = report.store
    counts = [pluralize(store.num_images, "image"), skeleton.count(store.num_people), pluralize(len(store), "sample")]
    counts += [f"{count} {what}" for what, count in report.changed.items()]
    _log.info("Built %s: %s", output.name, ", ".join(counts))
    lines = report.missing_lines()
    if num_background := count_background(store):
        text = store.skeleton.name_objects("images without annotations count as images without people")
        lines.append(f"{num_background} {text}; if they are not: --set data.background=0")
    for line in lines:
        _log.info("%s: %s", output.name, line)
        warnings.append(f"{split}: {line}")


def show_labels(data: PreparedData) -> None:
    """Draw samples of prepared data as labels.jpg; log what to correct and how to go on."""
    from posenet.data.dataset import PoseDataset  # these import PyTorch
    from posenet.data.targets import TargetRenderer

    sheet = data.folder / "labels.jpg"
    config = load_config(data.settings, data.overrides)
    dataset = PoseDataset(data.folder / "data" / "train.h5", config.train.size)
    write_image(sheet, sheet_of_samples(dataset, TargetRenderer.from_config(config)))
    _log.info("Labels: look at %s; left is blue, right is orange, the rest white", sheet)
    _log.info("Skeleton: correct %s if sides, parts or names are wrong", data.skeleton)
    _log.info("Next: the same without --prepare")


def choose_experiment(
    data: PreparedData, overrides: Sequence[str], experiment: Experiment, has_accelerator: bool
) -> tuple[Experiment, list[str]]:
    """The experiment and the overrides of a run.

    If no experiment is named, it is one for the device, with the network of ``train.weights`` if there are some; but a
    run that continues keeps its own. The height for prediction goes with the size of the training input.
    """
    pairs = [*data.overrides, *overrides]
    if data.is_started and experiment is None:
        return None, pairs
    choice = ""
    if experiment is None:
        experiment, device = ("small", "a GPU") if has_accelerator else ("tiny", "a CPU")
        choice = f", for {device}"
        if weights := data.settings.train.weights:
            from posenet.checkpoints.weights import stored_config  # imports PyTorch

            network = stored_config(weights).model
            pairs = [f"model.{key}={getattr(network, key)}" for key in ("stacks", "width", "growth")] + pairs
            choice += f", with the network of {weights}"
        choice += "; --config NAME takes another one (posenet config lists them)"
    before, after = load_config(experiment, ()), load_config(experiment, pairs)
    if after.train.size != before.train.size and "inference.height" not in _settings_of(pairs):
        height = before.inference.height * after.train.size[0] / before.train.size[0]
        pairs.append(f"inference.height={nearest_height(height)}")
        choice += f"; {pairs[-1]} goes with train.input_size"
    if not data.is_started:
        _log.info("Experiment %s%s", "given as settings" if isinstance(experiment, Config) else experiment, choice)
    return experiment, pairs


def conclude(data: PreparedData, progress: bool) -> None:
    """Evaluate the best checkpoint of a run, and log what the run has made."""
    folder = CheckpointFolder(data.folder)
    best = folder.best if folder.best.exists() else folder.last
    device = data.settings.train.device
    evaluation = evaluate(best, data.images, data.annotations, progress=progress, device=device)
    if evaluation is None:  # a file without people is refused before the run
        return
    count = pluralize(evaluation.images, "image")
    trained_on = "may have been" if data.settings.data.allow_overlap else "was not"
    _log.info("AP %.3f on %s that it %s trained on", evaluation.metrics["AP"], count, trained_on)
    words = ["--checkpoint", best, "--images", data.images, "--annotations", data.annotations]
    _log.info("Again: %s", command_line("evaluate", *words))
    for warning in data.warnings:
        _log.warning("%s", warning)
    if evaluation.images < FEW_IMAGES:
        _log.warning("An AP on %s depends on chance; give %d or more for validation (--val)", count, FEW_IMAGES)
    words = ["IMAGES", "--checkpoint", best, "--output", data.folder / "drawn"]
    _log.info("Next: %s", command_line("predict", *words))
