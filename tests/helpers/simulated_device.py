"""The simulated accelerator in the folder ``POSENET_SIMDEV``: compiling it once, and the environment that loads it.

The folder is no part of the project. It has a script ``build.py`` that compiles an extension module into a folder, and
a module ``simdev_boot`` whose function ``autoload`` registers the accelerator with PyTorch.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

ENTRY_POINT = "[torch.backends]\nsimdev = simdev_boot:autoload\n"
METADATA = "Metadata-Version: 2.1\nName: simdev-entry-point\nVersion: 0\n"


def simulated_environment() -> dict[str, str]:
    """The environment of a process that has the simulated accelerator; the test is skipped where there is none."""
    source = os.environ.get("POSENET_SIMDEV")
    if not source:
        pytest.skip("POSENET_SIMDEV is not set: it names the folder of a simulated accelerator")
    folder = Path(source).resolve()
    build = _compile(folder)
    paths = [str(build), str(folder), os.environ.get("PYTHONPATH", "")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "SIMDEV": "1",
        "SIMDEV_BUILD": str(build),
        "SIMDEV_DP": "1",
    }


def _compile(folder: Path) -> Path:
    """Compile the accelerator unless it has been, and return the folder of the extension module.

    ``POSENET_SIMDEV_BUILD`` names that folder; by default it is one in the user's cache for this source and PyTorch.
    """
    source = folder / "simdev.cpp"
    if not source.is_file():
        pytest.fail(f"POSENET_SIMDEV={folder} has no simulated accelerator (simdev.cpp)")
    version = hashlib.sha256(source.read_bytes() + torch.__version__.encode() + sys.version.encode()).hexdigest()[:12]
    cache = Path.home() / ".cache" / "posenet" / f"simdev-{version}"
    build = Path(os.environ.get("POSENET_SIMDEV_BUILD") or cache).resolve()
    build.mkdir(parents=True, exist_ok=True)
    with FileLock(build / "posenet.lock"):
        if not list(build.glob("simdev*.so")):
            (build / "lock").unlink(missing_ok=True)  # of a compilation that was killed: PyTorch would wait for its end
            subprocess.run([sys.executable, str(folder / "build.py"), str(build)], check=True)
        # PyTorch imports every entry point of this group, so child processes have the accelerator too.
        info = build / "simdev_entry_point-0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(METADATA, encoding="utf-8")
        (info / "entry_points.txt").write_text(ENTRY_POINT, encoding="utf-8")
    return build
