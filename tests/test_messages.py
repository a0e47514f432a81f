"""Text of messages."""

from posenet.messages import pluralize, to_single_line, without_worker_traceback


def test_pluralize():
    assert [pluralize(n, "image") for n in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
    assert pluralize(1, "person", "people") == "1 person" and pluralize(3, "person", "people") == "3 people"


def test_a_text_becomes_one_line_without_control_characters():
    assert to_single_line("a\n  b\tc") == "a b c"
    assert to_single_line("\x1b[31mred\x07") == "?[31mred?"


def test_an_error_of_a_data_worker_is_reduced_to_the_original_message():
    wrapped = (
        "Caught DataError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "x.py", line 1, in load\n'
        "posenet.errors.DataError: a.jpg is damaged: delete it\n"
    )
    assert without_worker_traceback(wrapped) == "a.jpg is damaged: delete it"
    assert without_worker_traceback("Caught in the rain") == "Caught in the rain"
