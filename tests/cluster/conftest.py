"""The cluster for the tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cluster import Cluster, missing_requirement


@pytest.fixture(scope="session")
def running_cluster(stores: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing_requirement():
        pytest.skip(reason)
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), stores)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster without jobs."""
    yield running_cluster
    running_cluster.reset()
