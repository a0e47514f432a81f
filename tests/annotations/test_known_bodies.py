"""What names say: sides in every spelling, canonical names, known twins, edges and sigmas."""

import pytest

from posenet.annotations.known_bodies import known_edges, known_sigmas, known_twins, pair_left_right, without_known_twin
from posenet.skeleton import COCO
from posenet.skeleton.known_names import canonical_names

SIDES = [
    "left_eye right_eye", "eye_left eye_right", "LeftEye RightEye", "eyeLeft eyeRight", "L_Eye R_Eye", "lEye rEye",
    "L_F_Paw R_F_Paw", "l-eye r-eye", "eye.L eye.R", "Lsho Rsho", "LEye REye", "eyeL eyeR", "eye_l eye_r", "lx rx",
    "leftear rightear", "earleft earright", "paw_fl paw_fr", "left_Eye right_eye", "forelegL2 forelegR2", "L R",
    "medial_left_bow medial_right_bow", "Auge_links Auge_rechts",
]  # fmt: skip


@pytest.mark.parametrize(
    "left, right",
    [*map(str.split, SIDES), ("LEFT EYE", "RIGHT EYE"), ("front left paw", "front right paw"), ("Eye (L)", "Eye (R)")],
)
def test_sides_are_read_from_names(left: str, right: str) -> None:
    assert pair_left_right(("nose", right, left)) == ((left, right),)


@pytest.mark.parametrize(
    "names", ["fl fr bl br", "lf rf lb rb", "rear_left rear_right front_left front_right", "LFPaw RFPaw LBPaw RBPaw"]
)
def test_four_legs_are_two_pairs(names: str) -> None:
    a, b, c, d = names.split()
    assert set(pair_left_right(names.split())) == {(a, b), (c, d)}


@pytest.mark.parametrize(
    "names, expected",
    [
        (("Right Shoulder", "Nose"), ("right_shoulder", "nose")),
        (("shoulder_r", "LShoulder"), ("right_shoulder", "left_shoulder")),
        (("Rsho", "Lsho"), ("right_shoulder", "left_shoulder")),
        (("rightear", "leftear", "snout", "tailbase"), ("right_ear", "left_ear", "nose", "tail_base")),
        (("L_F_Paw", "R_F_Paw", "Root of tail"), ("left_front_paw", "right_front_paw", "tail_base")),
        (("WRIST", "INDEX_FINGER_MCP", "THUMB_TIP"), ("wrist", "forefinger_1", "thumb_4")),
        (("nose", "snout"), ("nose", "snout")),  # one of them is not the other
    ],
)
def test_names_that_mean_the_same_have_one_canonical_name(names: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert canonical_names(names) == expected


@pytest.mark.parametrize(
    "names, category, pairs, pair",
    [
        ([f"face-{k}" for k in range(68)], "", 29, (36, 45)),
        ([f"keypoint_{k}" for k in range(1, 69)], "", 29, (0, 16)),
        ([f"kpt-{k}" for k in range(98)], "face", 44, (96, 97)),
        ([str(k) for k in range(1, 20)], "Face", 8, (0, 5)),
    ],
)
def test_numbered_faces_have_known_twins(names: list[str], category: str, pairs: int, pair: tuple[int, int]) -> None:
    found = known_twins(names, category)
    assert len(found) == pairs and (names[pair[0]], names[pair[1]]) in found
    assert without_known_twin(names, found, category) == ()
    assert len({name for edge in known_edges(names, category) for name in edge}) > len(names) / 2


def test_other_numbers_are_not_a_face() -> None:
    names = [f"k{number}" for number in range(19)]
    assert known_twins(names, "beetle") == () and without_known_twin(names, (), "beetle") == tuple(names)


def test_a_series_of_numbers_beside_sides_may_have_twins_but_not_a_spine() -> None:
    names = ["left_eye", "right_eye", "nose", *(f"spot{k}" for k in range(4)), *(f"spine{k}" for k in range(5))]
    assert without_known_twin(names, pair_left_right(names)) == ("spot0", "spot1", "spot2", "spot3")


def test_a_hand_alone_has_no_twins() -> None:
    names = ["wrist", *(f"{finger}{k}" for finger in ("thumb", "forefinger", "pinky_finger") for k in range(1, 5))]
    assert without_known_twin(names, ()) == ()
    assert len(known_edges(names)) == 12 and ("wrist", "pinky_finger1") in known_edges(names)
    assert 0.05 not in known_sigmas(names, "hand", default=0.05)


def test_an_animal_has_its_own_sigmas() -> None:
    body = ["neck", "left_shoulder", "left_elbow", "left_hip"]
    of_person = dict(zip(body, known_sigmas(body, "person", 0.05)))
    of_animal = dict(zip([*body, "L_F_Paw"], known_sigmas([*body, "L_F_Paw"], "dog", 0.05)))
    assert of_animal["neck"] < of_person["neck"] and of_animal["left_hip"] == of_person["left_hip"]
    assert of_animal["L_F_Paw"] == 0.062


def test_cocos_edges_are_those_of_its_skeleton() -> None:
    edges = set(map(frozenset, known_edges(COCO.file_names)))
    drawn = {frozenset(pair) for pair in COCO.drawn if "neck" not in pair}
    assert drawn <= edges and len(edges) == 19
    without_nose = set(map(frozenset, known_edges(COCO.file_names[1:])))
    assert without_nose == {edge for edge in edges if "nose" not in edge}, "no legs are crossed"
