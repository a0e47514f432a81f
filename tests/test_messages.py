from posenet.messages import counted


def test_counted():
    assert [counted(n, "picture") for n in (0, 1, 2)] == ["0 pictures", "1 picture", "2 pictures"]
    assert counted(1, "person", "people") == "1 person" and counted(3, "person", "people") == "3 people"
