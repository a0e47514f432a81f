"""People of Ray's workers are those of a predictor, whatever fails."""

import json
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from posenet.errors import DataError
from posenet.images import read_image, write_image
from posenet.inference.predictor import Predictor
from posenet.inference.ray_data import PredictPeople
from tests.helpers.image_bytes import encode
from tests.helpers.spot_networks import spot_people_image


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of people, and a file that is no image."""
    path = tmp_path_factory.mktemp("images")
    for number in range(12):
        write_image(path / f"{number:02d}.png", spot_people_image(200, 300, 1, number))
    (path / "05b.png").write_bytes(b"no image")
    return path


def expected_rows(spot_file: Path, folder: Path) -> dict[str, str]:
    predictor = Predictor(spot_file, device="cpu", backend="onnxruntime")
    return {
        path.name: json.dumps([person.to_dict() for person in predictor(read_image(path))])
        for path in folder.glob("??.png")
    }


def test_a_batch_of_files_or_of_arrays(spot_file: Path, folder: Path) -> None:
    predict = PredictPeople(spot_file, device="cpu", backend="onnxruntime")
    paths = sorted(folder.iterdir())
    rows = predict(
        {"path": np.array([path.name for path in paths]), "bytes": np.array([p.read_bytes() for p in paths])}
    )
    assert list(rows) == ["path", "people", "error"]
    expected = expected_rows(spot_file, folder)
    assert dict(zip(rows["path"], rows["people"])) == expected | {"05b.png": "[]"}
    assert [bool(error) for error in rows["error"]] == [path.name == "05b.png" for path in paths]
    arrays = np.stack([read_image(path)[..., ::-1] for path in paths if path.name != "05b.png"])
    assert predict({"image": arrays})["people"].tolist() == [expected[name] for name in sorted(expected)]
    with pytest.raises(DataError, match="not picture"):
        predict({"picture": arrays})
    with pytest.raises(DataError, match="uint8 or uint16, not float32"):
        predict({"image": arrays.astype(np.float32)})


def test_people_are_in_the_pixels_of_a_large_photograph(spot_file: Path) -> None:
    """It is read smaller."""
    image = cv2.resize(spot_people_image(200, 300, 1), (1200, 800))
    options = {"device": "cpu", "backend": "onnxruntime", "height": 192, "min_score": 0}
    [people] = PredictPeople(spot_file, **options)({"bytes": np.array([encode(image)], object)})["people"]
    [person] = json.loads(people)
    [expected] = Predictor(spot_file, **options)(image)
    np.testing.assert_allclose(person["box"], expected.box, atol=4)


class PredictAndDieOnce(PredictPeople):
    """The first worker that comes to a batch is killed."""

    def __init__(self, checkpoint: Path, marker: Path) -> None:
        super().__init__(checkpoint, device="cpu", backend="onnxruntime")
        self._marker = marker

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        import os
        import signal

        if not self._marker.exists():
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[object]:
    ray = pytest.importorskip("ray", reason="needs Ray: pip install simplepose[ray]")
    pytest.importorskip("ray.data")
    root = str(Path(__file__).parents[2])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": root}})
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_two_workers_of_a_local_ray_lose_nothing_when_one_is_killed(
    ray_cluster: object, spot_file: Path, folder: Path, tmp_path: Path
) -> None:
    import ray

    files = ray.data.read_binary_files(str(folder), include_paths=True)
    rows = files.map_batches(
        PredictAndDieOnce,
        fn_constructor_args=(spot_file, tmp_path / "killed"),
        batch_size=3,
        concurrency=2,
        num_cpus=1,
    ).take_all()
    assert (tmp_path / "killed").exists()
    found = {Path(row["path"]).name: row["people"] for row in rows}
    assert found == expected_rows(spot_file, folder) | {"05b.png": "[]"}
    assert [Path(row["path"]).name for row in rows if row["error"]] == ["05b.png"]
