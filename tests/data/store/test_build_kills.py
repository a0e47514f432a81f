"""Builds that are killed: the final name never holds an incomplete store, and the next build succeeds."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from posenet.data.build import build_store
from posenet.data.inspection import verify_store
from posenet.data.store import Store, writer
from posenet.errors import DataError
from tests.helpers.drawn_data import write_coco
from tests.helpers.process_runs import fork_process, wait_for_exit

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

NUM_IMAGES = 40


def build(coco: tuple[Path, Path], output: Path, limit: int | None = None, overwrite: bool = False) -> None:
    build_store(*coco, output, limit=limit, workers=1, overwrite=overwrite)


def killed_build(coco: tuple[Path, Path], output: Path, after: float, overwrite: bool) -> bool:
    """Build in a child process and kill it after some seconds. Returns whether the build was still running."""

    def build_in_child() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        writer.BUFFER_BYTES = 100_000  # so that images are written while others are read, as in large stores
        build(coco, output, overwrite=overwrite)

    pid = fork_process(build_in_child)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    return wait_for_exit(pid) == -signal.SIGKILL


@pytest.mark.parametrize("overwrite", [False, True], ids=["new", "overwrite"])
@pytest.mark.parametrize("kills", [3, pytest.param(40, marks=pytest.mark.torture)])
def test_builds_killed_at_random_moments(tmp_path: Path, kills: int, overwrite: bool) -> None:
    coco = write_coco(tmp_path, range(1, NUM_IMAGES + 1))
    output = tmp_path / "out" / "a.h5"
    start = time.perf_counter()
    build(coco, tmp_path / "whole.h5")
    seconds = time.perf_counter() - start
    whole = (tmp_path / "whole.h5").read_bytes()
    rng = np.random.default_rng(kills)
    killed = 0
    leftovers = 0
    while killed < kills:
        if overwrite:
            build(coco, output, limit=3, overwrite=True)
        killed += killed_build(coco, output, rng.uniform(0, 1.2 * seconds), overwrite)
        if overwrite or output.exists():
            with Store(output) as store:
                assert store.num_images in ((3, NUM_IMAGES) if overwrite else (NUM_IMAGES,))
            verify_store(output, workers=1)
        leftovers += len(list(tmp_path.glob("out/*.partial")))
        build(coco, output, overwrite=True)
        assert sorted(path.name for path in output.parent.iterdir()) == ["a.h5"]
        assert output.read_bytes() == whole
        if not overwrite:
            output.unlink()
    if kills > 3:
        sys.__stdout__.write(f"\n{killed} builds killed, {leftovers} left a file behind\n")
        assert leftovers


def test_an_incomplete_store_is_rejected(tmp_path: Path) -> None:
    coco = write_coco(tmp_path, range(1, 6))
    output = tmp_path / "a.h5"
    build(coco, output)
    whole = output.read_bytes()
    for share in np.linspace(0, 1, 30, endpoint=False):
        output.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError):
            Store(output)
