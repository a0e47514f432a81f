"""What a user means by annotations, without reading them; test_from_annotations.py has what becomes of it."""

import json
from pathlib import Path

import pytest

import posenet
from posenet.annotations.find_annotations import are_annotations, find_annotations
from posenet.errors import DataError


def images_of(file: Path, names: list[str]) -> list[Path]:
    """Where the images are found that a COCO file of these lists."""
    read_annotations = pytest.importorskip("posenet.annotations.importing.formats").read_annotations
    entries = [{"id": number, "file_name": name} for number, name in enumerate(names, 1)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": entries, "annotations": [], "categories": []}))
    found = read_annotations(file)
    return [found.folder / image["file_name"] for image in found.document["images"]]


def test_an_experiment_is_told_from_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("tiny", "coco"):
        Path(folder).mkdir()
    assert all(map(are_annotations, ["data.yaml", "a/train.json", Path("X.YML"), "a.zip", "coco", Path("coco")]))
    assert not any(map(are_annotations, ["tiny", "mine.toml", "missing", None, 3, posenet.load_config("tiny")]))


def test_the_folder_of_coco_has_its_images_beside_that_of_the_annotations(tmp_path: Path) -> None:
    files = [tmp_path / "annotations" / f"person_keypoints_{split}2017.json" for split in ("train", "val")]
    images = [tmp_path / f"{split}2017" / f"{split}.jpg" for split in ("train", "val")]
    for path in (*files, *images, tmp_path / "annotations" / "instances_train2017.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("{}")
    assert find_annotations(tmp_path, None) == tuple(files)
    for file, image in zip(files, images):
        assert images_of(file, [image.name]) == [image]


@pytest.mark.parametrize(
    "names, train, val",
    [
        (["trainval.json"], "trainval.json", None),
        (["Train.json", "constrained_val.json"], "Train.json", "constrained_val.json"),
        (["a_train.json", "a_valid.json"], "a_train.json", "a_valid.json"),
    ],
)
def test_a_file_is_that_of_a_split_if_its_name_has_the_word(
    tmp_path: Path, names: list[str], train: str, val: str | None
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    assert find_annotations(tmp_path, None) == (tmp_path / train, val and tmp_path / val)


def test_of_several_files_the_commands_that_name_one_are_listed(tmp_path: Path) -> None:
    for name in ("body.json", "hands.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError) as caught:
        find_annotations(tmp_path, None)
    assert all(f"posenet train {tmp_path / name}" in str(caught.value) for name in ("body.json", "hands.json"))
    assert "\n" not in str(caught.value)


def test_images_are_found_at_the_nearest_level_or_below_the_annotations(tmp_path: Path) -> None:
    names = [f"{number}.jpg" for number in range(4)]
    file = tmp_path / "annotations" / "a.json"
    for folder in ("old/copies/images", "photos", ".thumbnails"):
        (tmp_path / folder).mkdir(parents=True)
        for name in names:
            (tmp_path / folder / name).touch()
    assert images_of(file, names) == [tmp_path / "photos" / name for name in names]
    for name in names:  # as some sets have them: each in a folder that the names do not have
        (tmp_path / "photos" / f"of {name}").mkdir()
        (tmp_path / "photos" / name).rename(tmp_path / "photos" / f"of {name}" / name)
    found = [tmp_path / "photos" / f"of {name}" / name for name in names]
    assert images_of(tmp_path / "photos" / "a.json", names) == found
