"""Text of messages."""

import pytest

from posenet.messages import to_printable, to_single_line, without_worker_traceback


def test_a_text_becomes_one_line_without_control_characters():
    assert to_single_line("a\n  b\tc") == "a b c"
    assert to_single_line("\x1b[31mred\x07") == "?[31mred?"
    assert to_single_line("a\r\nb\x85c\u2028d\v") == "a b c d"


@pytest.mark.parametrize(
    "character",
    ["\x1b", "\x07", "\b", "\r", "\x7f", "\x9b", "\x85", "\u202e", "\u2066", "\u200b", "\u2028", "\udce9", "\ue000"],
    ids=ascii,
)
def test_what_could_control_a_terminal_or_hide_text_is_replaced(character):
    assert to_printable(f"a{character}b") == "a?b"


@pytest.mark.parametrize("text", ["two  spaces", "10.30\u202fAM.png", "\xa0", "a\nb", "Zoë.jpg", "写真.jpg"], ids=ascii)
def test_names_in_any_script_with_any_spaces_and_line_ends_stay(text):
    assert to_printable(text) == text


def test_an_error_of_a_data_worker_is_reduced_to_the_original_message():
    wrapped = (
        "Caught DataError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "x.py", line 1, in load\n'
        "posenet.errors.DataError: a.jpg is damaged: delete it\n"
    )
    assert without_worker_traceback(wrapped) == "a.jpg is damaged: delete it"
    assert without_worker_traceback("Caught in the rain") == "Caught in the rain"
