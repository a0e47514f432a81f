"""What to type here for commands and flags that users know from other programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from posenet.settings import Config

OTHER_TOOLS = {
    "pose": "predict, train or evaluate",
    **dict.fromkeys(["detect", "inference", "infer"], "predict"),
    **dict.fromkeys(["val", "validate", "eval", "test"], "evaluate"),
    "track": "predict --track",
    "export": "export-onnx",
}
_ONE = "train train-parallel"
_TRAIN = f"{_ONE} train-distributed"
_RUN = "predict app evaluate"
_REMEDIES = (
    (_TRAIN, "--nnodes --node-rank --nproc-per-node --rdzv-backend --rdzv-endpoint --standalone --max-restarts",
     "a flag of torchrun, before the tool: torchrun --nnodes 2 ... -m posenet train-distributed"),
    (_TRAIN, "--master-addr --master-port --dist-url --init-method --rank --node-id",
     "set by torchrun, srun or mpirun in MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE, or by you"),
    (_TRAIN, "--backend --dist-backend", "leave it out: NCCL, HCCL or Gloo is chosen for the device"),
    (_TRAIN, "--distributed --multiprocessing-distributed --ddp --horovod", "use posenet train-distributed --nproc N"),
    (_TRAIN, "--gpus --num-gpus --ngpus --world-size --nprocs --num-processes",
     "N processes, one for each GPU: posenet train-distributed --nproc N; CUDA_VISIBLE_DEVICES names the GPUs"),
    (_ONE, "--nproc", "posenet train-distributed has it: one process for each device"),
    ("evaluate", "--gpus --num-gpus --ngpus --nprocs --world-size", "use --nproc N, one process for each GPU"),
    ("predict", "--gpus --num-gpus --nproc --nprocs --world-size", "see posenet docs scale for several GPUs"),
    (f"{_TRAIN} {_RUN}", "--gpu --gpu-id --gpu-ids --gpu-index --cuda", "use --device cuda, or cuda:1 for the second"),
    (f"{_TRAIN} {_RUN}", "--half --fp16 --bf16 --mixed-precision --precision", "use --amp fp16 or --amp bf16"),
    (_TRAIN, "--ema --model-ema --use-ema", "use --set average.kind=ema"),
    (_TRAIN, "--swa", "use --config simplepose_swa, or --set average.kind=swa"),
    (_TRAIN, "--data --dataset --data-dir --data-path --train-data --source --annotations",
     "give the annotations without a flag: posenet train data.yaml"),
    (_TRAIN, "--model --ckpt --pretrained --load --checkpoint", "use --weights FILE; --config NAME is the network"),
    (_TRAIN, "--imgsz --img-size --image-size", "use --set train.input_size=N"),
    (_TRAIN, "--project --name --save-dir --out --out-dir --output --output-dir --work-dir --logdir",
     "use --checkpoint-path DIR"),
    (_TRAIN, "--batch --bs --batch-size", "use --set train.batch_size=N, which is that of one process"),
    (_TRAIN, "--learning-rate --lr0 --base-lr", "use --lr"),
    (_TRAIN, "--num-epochs --max-epochs", "use --epochs"),
    (_TRAIN, "--wd", "use --set optim.weight_decay=X"),
    (_TRAIN, "--optimizer --optim --opt", "use --set optim.name=sgd, or adamw"),
    (_TRAIN, "--num-workers", "use --set data.workers=N"),
    ("predict app", "--conf --conf-thres --score-thr --threshold", "use --min-score X"),
    ("predict", "--source --input --image --img --video --images", "give the input without a flag"),
    (_RUN, "--model --ckpt", "use --checkpoint FILE"),
    (_RUN, "--imgsz --img-size --input-size", "use --height N"),
    ("predict", "--project --name --save-dir --out --out-dir --output-dir", "use --output DIR"),
    ("evaluate", "--data --dataset", "use --images DIR and --annotations JSON"),
)  # fmt: skip
"""Tools, the flags of other programs that they do not have, and what to type instead of one."""


def remedy_for_foreign_flag(tool: str, words: Sequence[str]) -> str:
    """The first flag of another program on a command line, and what to type instead; empty if there is none."""
    for word in words:
        flag = word.partition("=")[0]
        for tools, flags, remedy in _REMEDIES:
            if tool in tools.split() and flag in flags.split():
                return f"{flag} is not a flag here: {remedy}"
    return ""


def remedy_for_setting(flag: str) -> str:
    """How to give the setting that has the name of a flag; empty if none or several have it."""
    name = flag.partition("=")[0].lstrip("-").removeprefix("no-").replace("-", "_")
    sections = {section.name: getattr(Config(), section.name) for section in fields(Config)}
    keys = [f"{section}.{name}" for section, values in sections.items() if hasattr(values, name)]
    return f"; {keys[0]} is a setting: --set {keys[0]}=VALUE" if len(keys) == 1 else ""
