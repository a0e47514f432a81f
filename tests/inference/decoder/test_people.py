"""The second half of the decoder: from candidates to people."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from posenet.inference.decoder.device_candidates import CandidateSelector
from posenet.inference.decoder.people import decode_candidates
from tests.helpers.rendered_maps import render_people, standing_person


@pytest.fixture(scope="module")
def arrays():
    """Peaks, pairs and limb scores of two people."""
    maps = torch.from_numpy(render_people(standing_person(130, 150, 0.7), standing_person(330, 190)))[None]
    return [array[0].numpy() for array in CandidateSelector()(maps, torch.tensor([maps.shape[2:]]))]


def test_thresholds_drop_people(arrays):
    assert len(decode_candidates(*arrays)) == 2
    assert decode_candidates(*arrays, min_score=1.1) == []
    assert decode_candidates(*arrays, min_keypoints=19) == []


def test_the_stride_scales_the_positions(arrays):
    for one, other in zip(decode_candidates(*arrays, stride=4), decode_candidates(*arrays, stride=8)):
        np.testing.assert_allclose((other.keypoints[:, :2] + 0.5) / 2, one.keypoints[:, :2] + 0.5, rtol=1e-5)


def test_pairs_without_a_score_are_no_limbs(arrays):
    peaks, pairs, limb_scores = arrays
    people = decode_candidates(peaks, pairs, np.zeros_like(limb_scores))
    assert [person.found.sum() for person in people] == [1] * 36


def test_no_candidates_are_no_people(arrays):
    peaks, pairs, limb_scores = arrays
    assert decode_candidates(np.zeros_like(peaks), pairs, np.zeros_like(limb_scores)) == []
    assert decode_candidates(peaks[:, :0], pairs[:0], limb_scores[:0]) == []


def test_arrays_of_wrong_shapes_are_refused(arrays):
    peaks, pairs, limb_scores = arrays
    with pytest.raises(ValueError, match="peaks must be"):
        decode_candidates(peaks[:5], pairs, limb_scores)
    with pytest.raises(ValueError, match="pairs must be"):
        decode_candidates(peaks, pairs[:, :2], limb_scores)


def test_the_module_needs_numpy_only(arrays, tmp_path):
    np.savez(tmp_path / "arrays.npz", *arrays)
    program = """
import sys
class BlockedImports:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cv2", "h5py", "pycocotools", "tqdm", "onnx", "onnxruntime"):
            raise ImportError(f"{name} must not be imported")
sys.meta_path.insert(0, BlockedImports())
import numpy as np
from posenet.inference.decoder.people import decode_candidates
people = decode_candidates(*np.load(sys.argv[1]).values())
np.save(sys.argv[2], np.stack([person.keypoints for person in people]))
"""
    subprocess.run([sys.executable, "-c", program, tmp_path / "arrays.npz", tmp_path / "people.npy"], check=True)
    np.testing.assert_array_equal(
        np.load(tmp_path / "people.npy"), np.stack([person.keypoints for person in decode_candidates(*arrays)])
    )
