"""The tables of benchmarks."""

from __future__ import annotations

from posenet.benchmark.report import Report, format_table, percent


def test_columns_are_aligned() -> None:
    rows = [("a long name", 1234.5), ("b", 0.01234), ("c", None), ("d", 12), ("e", 9.876), ("f", -98.76)]
    assert format_table(("stage", "ms"), rows).splitlines() == [
        "stage           ms",
        "-----------  -----",
        "a long name   1234",
        "b            0.012",
        "c",
        "d               12",
        "e             9.88",
        "f            -98.8",
    ]


def test_the_text_has_title_table_and_notes() -> None:
    report = Report("title", ("stage", "ms"), [("a", 1.0)], {}, ["first note", "second note"])
    assert report.as_text() == "title\n\nstage    ms\n-----  ----\na      1.00\n\nfirst note\nsecond note"
    assert Report("title", ("stage", "ms"), [], {}).as_text() == "title\n\nstage  ms\n-----  --"


def test_percent() -> None:
    assert percent(1, 8) == "12.5%"


def test_markdown_has_a_heading_a_table_notes_and_sections() -> None:
    section = Report("second", ("stage", "ms"), [("b", None)], {})
    report = Report("first", ("stage", "ms"), [("a", 1.0)], {}, ["a note"], [section])
    first = "### first\n\n| stage | ms |\n| --- | ---: |\n| a | 1.00 |\n\n- a note"
    assert report.as_markdown() == f"{first}\n\n### second\n\n| stage | ms |\n| --- | ---: |\n| b |  |"
    assert report.as_text().endswith("a note\n\nsecond\n\nstage  ms\n-----  --\nb")
