"""What sleap-io reads: labels by hand, their visibility, and the images of their frames."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from posenet.annotations.importing.formats import read_annotations, recognise
from posenet.errors import DataError
from posenet.images import read_image

sleap_io: Any = pytest.importorskip("sleap_io", reason="sleap-io is not installed: pip install 'simplepose[sleap]'")
BLUE, GREEN, RED = 10, 50, 200


def labels(folder: Path, by_hand: bool = True) -> Any:
    """Frame 1 of three images has two kites by hand, of which one is hidden in part; frame 2 has a predicted one."""
    files = [str(folder / f"{number}.png") for number in range(3)]
    for number, file in enumerate(files):
        cv2.imwrite(file, np.full((20, 30, 3), (BLUE * number, GREEN, RED), np.uint8))
    kite = sleap_io.Skeleton(nodes=[sleap_io.Node("left"), sleap_io.Node("right")], name="kite")
    kite.add_edge("left", "right")
    kite.add_symmetry("left", "right")
    first = sleap_io.Instance.from_numpy(np.array([[1, 2.5], [np.nan, np.nan]]), skeleton=kite)
    second = sleap_io.Instance.from_numpy(np.array([[3, 2.5], [6, 7.0]]), skeleton=kite)
    second.points["visible"][1] = False
    points = np.array([[3, 2.5], [6, 7.0]])
    guess = sleap_io.PredictedInstance.from_numpy(points, skeleton=kite, point_scores=np.ones(2), score=0.5)
    video = sleap_io.Video.from_filename(files)
    frames = {1: [first, second] if by_hand else [guess], 2: [guess]}
    labelled = [sleap_io.LabeledFrame(video=video, frame_idx=n, instances=own) for n, own in frames.items()]
    return sleap_io.Labels(labelled, skeletons=[kite])


@pytest.mark.parametrize("embed", [False, "user"])
def test_labels_by_hand_come_with_the_images_of_their_frames(tmp_path: Path, embed: Any) -> None:
    path = tmp_path / "a.slp"
    sleap_io.save_slp(labels(tmp_path), str(path), embed=embed, verbose=False)
    assert recognise(path)[0].name == "SLEAP"
    found = read_annotations(path, frames=tmp_path / "frames")
    [image] = found.document["images"]
    assert found.folder == (tmp_path / "frames" if embed else tmp_path)
    assert (image["width"], image["height"]) == (30, 20)
    assert read_image(found.folder / image["file_name"])[5, 5].tolist() == [BLUE, GREEN, RED]
    assert [entry["keypoints"] for entry in found.document["annotations"]] == [
        [1, 2.5, 2, 0, 0, 0],
        [3, 2.5, 2, 6, 7, 1],
    ]
    [category] = found.document["categories"]
    assert category == {
        "id": 1,
        "name": "kite",
        "keypoints": ["left", "right"],
        "skeleton": [[1, 2]],
        "flip_idx": [1, 0],
    }
    assert "predictions alone" in found.notes[0] and "frame 2" in found.notes[0]


def test_images_that_were_moved_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    sleap_io.save_slp(labels(tmp_path / "there"), str(tmp_path / "a.slp"), embed=False, verbose=False)
    (tmp_path / "there").rename(tmp_path / "here")
    assert read_annotations(tmp_path / "a.slp").folder == tmp_path / "here"
    (tmp_path / "here" / "1.png").unlink()
    with pytest.raises(DataError, match=r"no image and no video of .*a\.slp"):
        read_annotations(tmp_path / "a.slp")


def write_clips(folder: Path) -> Path:
    """Labels of frame 1 of two videos of one name, at x = 0 in the dark one and at x = 1 in the bright one."""
    kite = sleap_io.Skeleton(nodes=[sleap_io.Node("left"), sleap_io.Node("right")], name="kite")
    labelled = []
    for x, name in enumerate(("dark", "bright")):
        clip = folder / name / "clip.avi"
        clip.parent.mkdir(parents=True)
        writer = cv2.VideoWriter(str(clip), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 64))
        for _ in range(2):
            writer.write(np.full((64, 64, 3), 200 * x, np.uint8))
        writer.release()
        instance = sleap_io.Instance.from_numpy(np.array([[x, 2], [3, 4.0]]), skeleton=kite)
        video = sleap_io.Video(str(clip), open_backend=False)
        labelled.append(sleap_io.LabeledFrame(video=video, frame_idx=1, instances=[instance]))
    path = folder / "a.slp"
    sleap_io.save_slp(sleap_io.Labels(labelled, skeletons=[kite]), str(path), embed=False, verbose=False)
    return path


def test_videos_of_one_name_keep_their_own_labels(tmp_path: Path) -> None:
    write_clips(tmp_path / "there")
    path = (tmp_path / "there").rename(tmp_path / "here") / "a.slp"
    found = read_annotations(path, frames=tmp_path / "frames")
    shown = [read_image(found.folder / image["file_name"]).mean() > 100 for image in found.document["images"]]
    assert shown == [False, True]
    assert [entry["keypoints"][0] for entry in found.document["annotations"]] == [0, 1]
    (path.parent / "dark" / "clip.avi").rename(path.parent / "clip.avi")  # which of the two is it?
    found = read_annotations(path, frames=tmp_path / "frames")
    assert [entry["keypoints"][0] for entry in found.document["annotations"]] == [1]
    assert "frame 1 of video 1" in found.notes[0]


def test_predictions_alone_are_not_labels(tmp_path: Path) -> None:
    sleap_io.save_slp(labels(tmp_path, by_hand=False), str(tmp_path / "a.slp"), embed=False, verbose=False)
    with pytest.raises(DataError, match="no labels that were made by hand"):
        read_annotations(tmp_path / "a.slp")


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.slp"
    sleap_io.save_slp(labels(tmp_path), str(path), embed=False, verbose=False)
    content = path.read_bytes()
    for length in (100, len(content) // 2, len(content) - 10):
        path.write_bytes(content[:length])
        with pytest.raises(DataError) as caught:
            read_annotations(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
