"""The device's half of the decoder against ``decode``, and the NumPy half by itself."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from posenet.benchmark.degraded_maps import degraded_maps
from posenet.data.targets import TargetRenderer
from posenet.errors import ConfigError
from posenet.inference.decoder.device_candidates import Candidates
from posenet.inference.decoder.host_candidates import decode
from posenet.inference.decoder.people import decode_candidates
from posenet.skeleton import COCO
from tests.inference.decoder.test_decode import lit, person, render

CROWD = [
    person(130, 150, 0.7),
    person(190, 165, 0.8, 15),
    person(250, 150, 0.9),
    person(330, 190),
    person(415, 190, 0.6, -20),
]


def select(maps, size=None, **settings):
    """What ``Candidates`` says of one image's maps, as arrays."""
    sizes = torch.tensor([size or maps.shape[1:]])
    return [array[0].numpy() for array in Candidates(**settings)(torch.from_numpy(maps)[None], sizes)]


def assert_same(people, others, atol=0.02):
    assert len(people) == len(others)
    for one, other in zip(people, others):
        np.testing.assert_allclose(one.keypoints, other.keypoints, atol=atol)
        assert one.score == pytest.approx(other.score, abs=1e-4)


def test_rendered_people_are_those_of_decode():
    maps = render(*CROWD)
    people = decode_candidates(*select(maps))
    assert len(people) == len(CROWD)
    assert_same(people, decode(maps))


@pytest.mark.parametrize("seed", range(4))
def test_so_are_those_of_poor_maps(seed):
    """The slope keeps the maps, which are clipped at 1, from having plateaus; the two place these differently."""
    maps = degraded_maps(np.stack(CROWD), (96, 128), TargetRenderer.from_config(Config()), np.random.default_rng(seed))
    maps -= 1e-5 * np.add(*np.mgrid[:96, 0:192:1.5])
    people = decode(maps)
    assert len(people) > 3
    assert_same(decode_candidates(*select(maps)), people)


def test_thresholds_and_limits():
    maps = render(*CROWD)
    assert_same(
        decode_candidates(*select(maps, keypoint_threshold=0.9, part_threshold=0.3)),
        decode(maps, keypoint_threshold=0.9, part_threshold=0.3),
    )
    assert_same(decode_candidates(*select(maps, max_peaks=2)), decode(maps, max_peaks=2))
    peaks, pairs, evidence = select(maps, max_peaks=8, max_limbs=50)
    assert peaks.shape == (18, 8, 3) and pairs.shape == (50, 3) and evidence.shape == (50,)
    for wrong in (0, 257):
        with pytest.raises(ConfigError, match="1 to 256"):
            Candidates(max_peaks=wrong)


def test_padding_is_not_searched():
    maps = render(*CROWD)
    inside = np.ascontiguousarray(maps[:, :90, :70])
    assert_same(decode_candidates(*select(maps, (90, 70))), decode(inside))


def test_pictures_of_a_batch_are_apart():
    several = np.stack([render(*CROWD), render(), render(CROWD[0])])
    sizes = torch.tensor([several.shape[2:]] * 3)
    for own, *arrays in zip(several, *(array.numpy() for array in Candidates()(torch.from_numpy(several), sizes))):
        assert_same(decode_candidates(*arrays), decode(own))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, 0.0, 1.0])
def test_strange_maps(value):
    people = decode_candidates(*select(np.full((50, 32, 32), value, np.float32)))
    assert all(np.isfinite(one.keypoints).all() and np.isfinite(one.score) for one in people)
    maps = render(CROWD[0])
    maps[:, :20, 90:] = value if not value > 0.1 else np.nan
    assert_same(decode_candidates(*select(maps)), decode(maps))


def test_two_equal_cells_are_one_peak_between_them():
    maps = lit(("nose", 10, 20, 0.8), ("nose", 10, 21, 0.8), ("nose", 10, 19, 0.4), ("nose", 10, 22, 0.4))
    [one] = decode_candidates(*select(maps))
    np.testing.assert_allclose(one.keypoints[COCO.index("nose")], (20.5 * 4 + 1.5, 10 * 4 + 1.5, 0.8), atol=1e-4)


def test_arrays_that_do_not_fit_are_refused():
    peaks, pairs, evidence = select(render(CROWD[0]))
    with pytest.raises(ValueError, match="peaks must be"):
        decode_candidates(peaks[:5], pairs, evidence)
    with pytest.raises(ValueError, match="pairs must be"):
        decode_candidates(peaks, pairs[:, :2], evidence)


def test_the_numpy_half_needs_numpy_alone(tmp_path):
    """Neither PyTorch nor OpenCV nor anything else that has to be installed."""
    arrays = select(render(*CROWD))
    np.savez(tmp_path / "arrays.npz", *arrays)
    program = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cv2", "h5py", "pycocotools", "tqdm", "onnx", "onnxruntime"):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Nothing())
import numpy as np
from posenet.inference.decoder.people import decode_candidates
people = decode_candidates(*np.load(sys.argv[1]).values())
np.save(sys.argv[2], np.stack([person.keypoints for person in people]))
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "arrays.npz", tmp_path / "people.npy"], check=True)
    np.testing.assert_array_equal(
        np.load(tmp_path / "people.npy"), np.stack([person.keypoints for person in decode_candidates(*arrays)])
    )
