"""Names of flags: ``_`` for ``-``, and what to say about a flag that a tool does not have, but other programs do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from posenet.messages import suggest

INPUTS = "INPUT"
"""Stands among the flags of a tool that takes inputs without a flag."""

# Each kind of tool is recognised by a flag that only tools of this kind have.
_TRAINING = "--max-steps"
_EVALUATION = "--report"


class _Remedy(NamedTuple):
    """What to say to users of a tool that has the flag ``own_flag``, if they type one of ``foreign_flags``."""

    own_flag: str
    text: str
    foreign_flags: str
    """Flags of other programs, separated by spaces."""


def _same(flag: str, flags: str) -> _Remedy:
    return _Remedy(flag, f"here it is {flag}", flags)


def _setting(pair: str, flags: str) -> _Remedy:
    return _Remedy(_TRAINING, f"here it is --set {pair}", flags)


_SCORE = "--conf --conf-thres --confidence --score-thr --score-threshold --bbox-thr --threshold"
_DATA = "--data --dataset --data-dir --data-root --data-path --train-data"
_INPUT = "--source --input --inputs --image --img --video --videos --glob --file"
_IMAGES = "--images --imgs --img-dir --image-dir --image-folder --img-root"
_ANNOTATIONS = "--annotations --ann --ann-file --anno --annotation --gt --labels"
_WEIGHTS = "--model --model-path --ckpt --pretrained --load --weight --weights --checkpoint --checkpoint-file"
_SIZE = "--imgsz --img-size --image-size --input-size --resolution --long-edge --short-side"
_FOLDER = (
    "--save --save-dir --out --out-dir --outdir --output --output-dir --project --name --work-dir --run-dir --logdir"
)
_WORKERS = "--workers --num-workers --loader-workers --jobs"
_SEED = "--seed --random-seed"
_PROCESSES = "--nproc --nproc-per-node --nprocs --num-processes --num-gpus --world-size"
_NO_FLAG = "give the input without a flag"

# Of several remedies for a flag, the first one whose own flag the tool has is used.
_REMEDIES = [
    _Remedy(_EVALUATION, "the report of --report DIR has these charts", "--plots"),
    _same("--min-score", _SCORE),
    _Remedy(_EVALUATION, "evaluation keeps all people, because AP needs them", _SCORE),
    _Remedy(
        _TRAINING, "give the annotations without a flag: posenet train data.yaml", f"{_DATA} {_INPUT} {_ANNOTATIONS}"
    ),
    _Remedy(
        _EVALUATION,
        "here it is --images and --annotations; posenet annotations import makes the annotations of a data.yaml",
        "--data --dataset",
    ),
    _same("--images", f"{_DATA} {_INPUT} {_IMAGES}"),
    _same("--annotations", _ANNOTATIONS),
    _Remedy(INPUTS, _NO_FLAG, f"{_DATA} {_INPUT} {_IMAGES} {_ANNOTATIONS}"),
    _same("--results", "--dt --pred --preds --predictions"),
    _same("--checkpoint", _WEIGHTS),
    _Remedy("--weights", "here it is --weights FILE, or --config NAME for the size of the network", _WEIGHTS),
    _same("--height", _SIZE),
    _setting("train.input_size=N", _SIZE),
    _same("--checkpoint-path", _FOLDER),
    _same("--output", f"{_FOLDER} --save-img --save-vid --vis-out-dir --image-output --video-output"),
    _same("--json", "--save-json --save-txt --json-output --output-json --write-json --pred-out-dir"),
    _same("--show", "--view --view-img --display --imshow --show-result"),
    _same("--overwrite", "--exist-ok --force"),
    _same("--workers", _WORKERS),
    _setting("data.workers=N", _WORKERS),
    _same("--batch-size", "--batch --bs --batchsize --samples-per-gpu --train-batch-size"),
    _same("--epochs", "--num-epochs --n-epochs --max-epochs --total-epochs"),
    _same("--lr", "--learning-rate --lr0 --base-lr"),
    _setting("optim.weight_decay=X", "--weight-decay --wd"),
    _setting("optim.momentum=X", "--momentum"),
    _setting("optim.name=sgd or adamw", "--optimizer --optim --opt"),
    _same("--seed", _SEED),
    _setting("train.seed=N", _SEED),
    _setting("checkpoint.every_steps=N", "--save-period --save-freq --save-interval"),
    _Remedy("--amp", "here it is --amp fp16 or --amp bf16", "--half --fp16 --bf16 --mixed-precision --precision"),
    _Remedy("--device", "here it is --device cuda, or cuda:1 for the second", "--gpu --gpus --gpu-id --gpu-ids --cuda"),
    _same("--nproc", _PROCESSES),
    _Remedy(
        "--json",
        "a process takes its part of a list: split -n l/1/8 FILES | posenet predict - takes the first of 8",
        f"--shard {_PROCESSES}",
    ),
    _Remedy(_TRAINING, "posenet train-distributed has --nproc", _PROCESSES),
    _same("--resume", "--continue --resume-from --resume-training --auto-resume"),
    _same("--flip", "--tta --flip-test --augment"),
    _same("--scales", "--multi-scale --multiscale"),
    _same("--stride", "--vid-stride --frame-stride --skip-frames"),
    _same("--track", "--tracker --tracking"),
    _same("--keypoint-score", "--kpt-thr --kpt-score-thr"),
    _Remedy("--style", "here it is --style openpose", "--openpose-skeleton --skeleton-style"),
]


def remedy_for_flag(flag: str, known: Collection[str]) -> str:
    """What to use instead of a flag that a tool does not have; ``INPUTS`` may be known. Empty if nothing is similar."""
    for remedy in _REMEDIES:
        if remedy.own_flag in known and flag in remedy.foreign_flags.split():
            return remedy.text
    flags = sorted(name for name in known if name.startswith("--"))
    similar = [name for name in flags if name.startswith(flag)]
    return f"did you mean {' or '.join(similar)}?" if similar else suggest(flag, flags).rstrip()


def normalize_option_names(argv: Sequence[str]) -> list[str]:
    """Replace ``_`` by ``-`` in option names, up to a lone ``--``: ``--max_steps=a_b`` becomes ``--max-steps=a_b``."""
    normalized = []
    options_end = argv.index("--") if "--" in argv else len(argv)
    for word in argv[:options_end]:
        name, equals, value = word.partition("=")
        normalized.append(name.replace("_", "-") + equals + value if name.startswith("--") else word)
    return normalized + list(argv[options_end:])
