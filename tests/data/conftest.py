"""Fixtures for the tests of data: small stores."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from posenet.data.store import Record, Store
from tests.helpers.drawn_data import make_record, write_store


@pytest.fixture
def store(stores: dict[str, Path]) -> Iterator[Store]:
    """The training store of drawn people."""
    with Store(stores["train"]) as store:
        yield store


@pytest.fixture
def records() -> list[Record]:
    """Three images with 3, 1 and 2 people."""
    return [make_record(7, 3), make_record(3, 1), make_record(5, 2)]


@pytest.fixture
def path(tmp_path: Path, records: list[Record]) -> Path:
    """The store of ``records``."""
    return write_store(tmp_path / "tiny.h5", records)
