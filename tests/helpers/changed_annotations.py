"""Annotation files with two people in each of three images, changed, and what the reader says of them."""

from collections.abc import Callable
from typing import Any

from posenet.annotations.coco import AnnotationFile
from posenet.annotations.reader import read_annotation_file
from tests.helpers.drawn_data import crowd, document, person

Document = dict[str, Any]

Change = Callable[[Document], Any]


def people_document() -> Document:
    """Three images with two people each, and a crowd."""
    people = [person(10 * number + k, number, (20 + 60 * k, 20, 50, 60)) for number in (1, 2, 3) for k in range(2)]
    return document([1, 2, 3], [*people, crowd(50, 3, (0, 90, 40, 20))])


def read(content: Document, **options: Any) -> AnnotationFile:
    return read_annotation_file("a.json", document=content, **options)


def changed(*changes: Change, content: Document | None = None) -> Document:
    content = content or people_document()
    for change in changes:
        change(content)
    return content


def setting(section: str, index: int = 0, **values: Any) -> Change:
    return lambda content: content[section][index].update(values)


def each(section: str, change: Callable[[Document], Any]) -> Change:
    return lambda content: [change(entry) for entry in content[section]]


def write_boxes(convert: Callable[[float, float, float, float], list[float]]) -> Change:
    return each("annotations", lambda entry: entry.update(bbox=convert(*entry["bbox"])))


def found(file: AnnotationFile) -> dict[str, tuple[str, list[str]]]:
    """The kinds and the places of all adjustments by code."""
    return {one.code: (one.kind, one.places) for one in file.adjustments}


def kinds(file: AnnotationFile) -> dict[str, str]:
    return {one.code: one.kind for one in file.adjustments}
