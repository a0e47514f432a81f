"""Measure the speed of one part, such as the training step, and compare it with a limit; see docs/benchmarks.md."""

import argparse
import os
import sys
from pathlib import Path

import cv2
import torch
from benchmarks import data, decode, gpu, network, predict, targets, train
from benchmarks.measuring import Table, describe_machine, write_json

from posenet.cli.main import ToolParser, run_and_report
from posenet.cli.options import add_config_options, positive_int, with_dashes
from posenet.devices.device import cudnn_flags, select_device
from posenet.settings import load_config

PARTS = {part.__name__.rpartition(".")[2]: part for part in (data, targets, network, train, decode, predict, gpu)}


def make_parser() -> ToolParser:
    """The parser of all benchmarks."""
    parser = ToolParser(prog="benchmark.py", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="part", parser_class=ToolParser)
    for name, module in PARTS.items():
        summary = (module.__doc__ or "").partition("\n")[0]
        part = parts.add_parser(name, help=summary, description=summary)
        add_config_options(part)
        part.add_argument("--repeats", type=positive_int, default=5, metavar="N", help="timed runs; 5 by default")
        part.add_argument("--threads", type=positive_int, default=1, metavar="N", help="CPU threads; 1 by default")
        part.add_argument("--device", default="cpu", metavar="D", help="auto, cpu (the default), cuda, ...")
        part.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to this file")
        part.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to this file")
        module.add_arguments(part)
    return parser


def main() -> int:
    """Run one benchmark, print its tables and write its numbers; return the exit status."""
    args = make_parser().parse_args(with_dashes(sys.argv[1:]))
    return run_and_report(lambda: _run(args), "benchmark.py")


def _run(args: argparse.Namespace) -> None:
    cv2.setNumThreads(0)  # it would start threads besides those of --threads
    torch.set_num_threads(args.threads)
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # the threads of exported files
    torch.manual_seed(0)
    config = load_config(args.config, args.overrides)
    device = select_device(args.device)
    with cudnn_flags(benchmark=True, tf32=config.train.tf32):
        tables: list[Table] = []
        for table in PARTS[args.part].run(args, config, device):
            if table not in tables:
                tables.append(table)
            # A long benchmark returns a table after each of its rows, so that nothing is lost if it is interrupted.
            if args.json:
                write_json(args.json, tables, describe_machine(device))
            if args.markdown:
                args.markdown.write_text(_as_text(tables) + "\n", encoding="utf-8")
    print(_as_text(tables))


def _as_text(tables: list[Table]) -> str:
    return "\n\n".join(table.as_markdown() for table in tables)


if __name__ == "__main__":
    sys.exit(main())
