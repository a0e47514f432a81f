"""The cluster for the tests, and the table of all cases that is printed as they run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cluster import Cluster, missing_requirement

MAX_TRIES = int(os.environ.get("TRIES", "9"))
"""How often to run each case at most."""
HEADER = "| case | tried | result | test |\n|---|---|---|---|"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a case as often as its marker says, and at most as often as the variable TRIES says."""
    marker = metafunc.definition.get_closest_marker("case")
    if marker is not None:
        _, tries = marker.args
        metafunc.fixturenames.append("attempt")
        metafunc.parametrize("attempt", range(1, min(tries, MAX_TRIES) + 1))


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


@pytest.fixture
def observe(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """A function that records in a few words what became of a case, for the table."""
    return lambda text: record_property("observed", text)


class CaseTable:
    """Prints a row for every case when its last attempt has ended."""

    def __init__(self, terminal: Any, cases: dict[str, tuple[str, int]]) -> None:
        self.terminal = terminal
        self.cases = cases  # description and number of attempts by the name of the test
        self.results: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        is_result = report.when == "call" or (report.when == "setup" and report.failed)
        if name not in self.cases or not is_result:
            return
        if not self.results:
            self._write(HEADER)
        observed = [str(value) for key, value in report.user_properties if key == "observed"]
        results = self.results.setdefault(name, [])
        results.append("; ".join(observed) if report.passed else "FAILED")
        description, tries = self.cases[name]
        if len(results) == tries:
            self._write(f"| {description} | {tries} | {_summarize(results)} | `{name.removeprefix('test_')}` |")

    def _write(self, text: str) -> None:
        self.terminal.ensure_newline()
        self.terminal.write_line(text)


def _summarize(results: list[str]) -> str:
    counts = Counter(results)
    if len(counts) == 1:
        return results[0]
    return "; ".join(f"{count} of {len(results)}: {result}" for result, count in counts.most_common())


def pytest_collection_finish(session: pytest.Session) -> None:
    cases = {}
    for item in session.items:
        marker = item.get_closest_marker("case")
        if marker is not None:
            description, tries = marker.args
            cases[item.originalname] = description, min(tries, MAX_TRIES)
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    session.config.pluginmanager.register(CaseTable(terminal, cases), "case-table")
