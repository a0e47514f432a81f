"""The web service of docs/service.py, with real clients that send photographs, damaged files and too large ones."""

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from posenet import Predictor
from tests.helpers.image_bytes import encode, with_orientation
from tests.helpers.source_files import ROOT
from tests.helpers.spot_networks import spot_people_image

httpx = pytest.importorskip("httpx", reason="the clients need httpx")
pytest.importorskip("uvicorn", reason="the service needs the extra service")

CLIENTS = 16
REQUESTS = 1000
APP = """
from posenet import Predictor
from service import make_app

def make():
    return make_app(Predictor({file!r}, min_score=0, height=64, backend="onnxruntime"))
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def service(spot_file: Path, tmp_path: Path) -> Iterator[str]:
    """The address of the service, whose process has no standard streams."""
    (tmp_path / "app.py").write_text(APP.format(file=str(spot_file)))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "uvicorn", "--factory", "app:make", "--app-dir", str(tmp_path), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "docs")]), "OMP_NUM_THREADS": "1"}
    with open(tmp_path / "log.txt", "wb") as log:
        process = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                assert httpx.get(f"{address}/health").json() == {"waiting": 0}
                break
            except httpx.TransportError:
                assert process.poll() is None, (tmp_path / "log.txt").read_text()
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def test_a_thousand_requests_of_sixteen_clients_are_answered_rightly(service: str, spot_file: Path) -> None:
    predictor = Predictor(spot_file, min_score=0, height=64, backend="onnxruntime")
    photographs = []
    for number in range(12):
        data = encode(spot_people_image(120 + 20 * (number % 3), 200, 1 + number % 4, number))
        photographs.append(with_orientation(data, 6) if number % 4 == 3 else data)
    answers = [(200, predictor(data).to_dicts()) for data in photographs]
    assert sum(len(people) for _, people in answers) > 12
    rng = random.Random(1)
    contents: list[tuple[bytes, tuple[int, Any]]] = []
    for number in range(REQUESTS):
        index = rng.randrange(len(photographs))
        kind = number % 10
        if kind == 0:
            contents.append((photographs[index][: rng.randrange(1, 900)], (422, None)))
        elif kind == 1:
            contents.append((rng.randbytes(500), (422, None)))
        elif number % 250 == 2:
            contents.append((bytes(21 * 2**20), (413, None)))
        else:
            contents.append((photographs[index], answers[index]))

    def ask(client: int) -> list[int]:
        wrong = []
        with httpx.Client(timeout=120) as session:
            for number in range(client, REQUESTS, CLIENTS):
                data, (status, people) = contents[number]
                answer = session.post(f"{service}/people", content=data)
                while answer.status_code == 503:
                    time.sleep(0.05)
                    answer = session.post(f"{service}/people", content=data)
                if answer.status_code != status or (status == 200 and not is_same(answer.json(), people)):
                    wrong.append(number)
        return wrong

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(ask, range(CLIENTS))) == [[]] * CLIENTS
    assert httpx.get(f"{service}/health").json() == {"waiting": 0}


def is_same(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    """The same people; the last bits may depend on the other images of a batch."""
    return len(found) == len(expected) and all(
        one["keypoints"].keys() == other["keypoints"].keys()
        and all(
            one["keypoints"][name] == pytest.approx(other["keypoints"][name], abs=1e-2) for name in one["keypoints"]
        )
        for one, other in zip(found, expected)
    )
