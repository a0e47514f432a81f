"""Text of messages: plurals, commands, marked warnings, and text from files and servers, made safe for a terminal.

All text that the command line shows, and every line of ``log.txt``, goes through ``to_printable``.
"""

import difflib
import logging
import re
import reprlib
import shlex
import unicodedata
from collections.abc import Iterable

_short_repr = reprlib.Repr()
_short_repr.maxlevel = 2
_short_repr.maxstring = 60
_short_repr.maxother = 60
_short_repr.maxlong = 60

MAX_REASON = 200
"""Characters of the reason of a library or a server that a message shows; it can be long."""
_NO_MEMORY = re.compile(
    "allocate memory|out of memory|insufficient memory|bad_alloc|failed to map segment|start new thread|"
    "could not create a primitive",
    re.IGNORECASE,
)
"""In messages of PyTorch, OpenCV, oneDNN, the loader of libraries and the start of a thread: no ``MemoryError``."""


class MessageFormatter(logging.Formatter):
    """Marks warnings and errors with their level, at ``%(mark)s`` in the format: ``WARNING: the loss is bad``.

    The text is safe for a terminal; see ``to_printable``.
    """

    def format(self, record: logging.LogRecord) -> str:
        record.mark = f"{record.levelname}: " if record.levelno >= logging.WARNING else ""
        return to_printable(super().format(record).rstrip())  # a warning of Python ends its line


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """``1 image``, ``2 images``; ``pluralize(3, "person", "people")`` is ``3 people``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or noun + 's'}"


def command_line(*words: object) -> str:
    """A command of posenet, as it is typed."""
    return shlex.join(["posenet", *map(str, words)])


def suggest(name: str, known: Iterable[str]) -> str:
    """``did you mean NAME? ``, before another remedy, if one of the known names is similar; else empty."""
    similar = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {similar[0]}? " if similar else ""


def to_printable(text: str) -> str:
    """Replace every character by "?" that could control a terminal, hide text or change its direction.

    These are control codes, the directions and joiners of Unicode, and the surrogates that stand for bytes in names
    that are no text. Line ends stay, and a tab becomes a space.
    """

    def is_safe(character: str) -> bool:
        return character.isprintable() or character == "\n" or unicodedata.category(character) == "Zs"

    return "".join(character if is_safe(character) else "?" for character in text.replace("\t", " "))


def to_single_line(text: str) -> str:
    """Join the lines of a text by spaces, and make it safe for a terminal; see ``to_printable``."""
    return to_printable(" ".join(line.strip() for line in text.splitlines() if line.strip()))


def truncate_for_message(value: object) -> str:
    """``repr`` of a value from a file, shortened, because the value can be of any length and depth."""
    return _short_repr.repr(value)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that the host or a device has too little memory."""
    return isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)) is not None


def first_sentence(error: Exception) -> str:
    """The first sentence of the first line of an error's message, which names the cause in errors of PyTorch."""
    return str(error).partition("\n")[0].partition(". ")[0]


def without_worker_traceback(message: str) -> str:
    """The original message of an error to which PyTorch has added the traceback of a data worker."""
    if message.startswith("Caught ") and "Traceback" in message:
        last_line = message.strip().splitlines()[-1]
        return last_line.partition(": ")[2]
    return message
