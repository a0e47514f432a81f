"""The device suite on a simulated accelerator, where ``POSENET_SIMDEV`` names the folder of one.

A simulated accelerator must exist before a process uses any device, so every module of the suite runs in a pytest
process of its own. There it is an accelerator like any other: ``pytest -m gpu`` selects the same tests as on a GPU.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.simulated_device import simulated_environment
from tests.helpers.source_files import ROOT

pytestmark = pytest.mark.slow

SUITE = sorted(Path(__file__).parent.glob("test_device_*.py"))
SHOWN_CHARACTERS = 6000
"""The end of a module's output that is shown if it fails."""


@pytest.mark.parametrize("module", SUITE, ids=lambda path: path.stem)
def test_the_suite_passes_on_the_simulated_accelerator(module: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-rs", "--tb=short", "-p", "no:cacheprovider", str(module)]
    run = subprocess.run(command, cwd=ROOT, env=simulated_environment(), capture_output=True, text=True)
    output = (run.stdout + run.stderr)[-SHOWN_CHARACTERS:]
    assert run.returncode == 0, output
    assert re.search(r"\d+ passed", run.stdout), f"no test ran:\n{output}"
