"""Run the tests as other processors, with other Pythons and with other versions of packages, and print a table.

``make matrix`` calls this. The environments of Python 3.12 and 3.13 and of the oldest and the newest packages are made
in ``--folder`` once, and kept; the output of the tests is in its ``logs``. The exit status is 1 if a test failed.
"""

import argparse
import configparser
import fnmatch
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROCESSORS = {
    "this": {},
    "sse41": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}
"""For each processor the variables that limit the instructions of PyTorch; "this" is the one of this machine."""
THREADS = {"1": {"OMP_NUM_THREADS": "1"}, "2": {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}}
"""Threads that wait actively would take the cores from the other tests."""
ROW = "{:<16} {:<10} {:>7} {:>7} {:>7} {:>8}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of combinations, or patterns of names, in one argument")
    parser.add_argument("--tiers", default="test test-slow", help="targets of the Makefile, in one argument")
    parser.add_argument("--folder", type=Path, default=Path(".matrix"), help="for environments and logs")
    parser.add_argument("--pythons", nargs=3, metavar=("OLDEST", "PYTHON3.12", "PYTHON3.13"), required=True)
    args = parser.parse_args()
    (args.folder / "logs").mkdir(parents=True, exist_ok=True)

    combinations = make_combinations(args.folder.resolve(), *args.pythons)
    patterns = args.only.split()
    chosen = [name for name in combinations if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    if not chosen:
        parser.error(f"no combination is called {args.only}; the names are {', '.join(combinations)}")

    print(ROW.format("combination", "tier", "passed", "failed", "skipped", "seconds"), flush=True)
    failed = [
        log
        for name in chosen
        for tier in args.tiers.split()
        if not run(name, tier, combinations[name], log := args.folder / "logs" / f"{name}-{tier}.log")
    ]
    for log in failed:
        print(f"failed: see {log}")
    return 1 if failed else 0


def make_combinations(folder: Path, oldest_python: str, python312: str, python313: str) -> dict[str, dict[str, str]]:
    """For each name the variables of make and of the environment."""
    combinations = {
        f"{processor}-{threads}": instructions | limit
        for processor, instructions in PROCESSORS.items()
        for threads, limit in THREADS.items()
    }
    environments = {
        "py312": (python312, ROOT / "constraints.txt"),
        "py313": (python313, ROOT / "constraints.txt"),
        "oldest": (oldest_python, write_if_new(folder / "oldest.txt", oldest_versions())),
        "newest": (python313, write_if_new(folder / "newest.txt", "")),
    }
    for name, (python, constraints) in environments.items():
        combinations[name] = {"VENV": str(folder / name), "PYTHON": python, "CONSTRAINTS": str(constraints)}
    combinations["oldest"]["POSENET_SIMDEV"] = ""  # the simulated device is written for the C++ of a newer PyTorch
    return combinations


def oldest_versions() -> str:
    """Constraints for the lower bound of every requirement in setup.cfg."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    lists = [settings["options"]["install_requires"], *settings["options.extras_require"].values()]
    bounds = dict(re.findall(r"^([\w-]+)(?:\[\w+\])?>=([\d.]+)$", "\n".join(lists), re.MULTILINE))
    bounds["opencv-python-headless"] = bounds["opencv-python"]
    return "".join(f"{package}=={version}\n" for package, version in sorted(bounds.items()))


def write_if_new(path: Path, text: str) -> Path:
    """Write a file, unless it has this text: make installs packages again where the file is newer."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path


def run(name: str, tier: str, variables: dict[str, str], log: Path) -> bool:
    """Run a tier and print its row; whether it passed."""
    # Without the variables of the make that called this, which would override those of the combination.
    environment = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    arguments = [f"{key}={value}" for key, value in variables.items()]
    start = time.monotonic()
    with log.open("w") as file:
        # make passes the variables of its command line on to the tests.
        status = subprocess.run(
            ["make", tier, *arguments], cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
        ).returncode
    seconds = time.monotonic() - start

    # The last line of pytest, such as "1 failed, 2246 passed, 13 skipped in 120.31s".
    summaries = re.findall(r"^.*\d+ (?:passed|failed|skipped|errors?)\b.* in [\d.]+s.*$", log.read_text(), re.MULTILINE)
    counts = dict.fromkeys(("passed", "failed", "skipped", "error"), 0)
    for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", summaries[-1] if summaries else ""):
        counts[word] += int(number)
    failed = counts["failed"] + counts["error"]
    print(
        ROW.format(name, tier, counts["passed"], failed or ("?" if status else 0), counts["skipped"], f"{seconds:.0f}"),
        flush=True,
    )
    return status == 0


if __name__ == "__main__":
    sys.exit(main())
