from posenet.messages import pluralize


def test_pluralize():
    assert [pluralize(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert pluralize(1, "person", "people") == "1 person" and pluralize(3, "person", "people") == "3 people"
