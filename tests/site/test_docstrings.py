"""Docstrings of this project's style become lists."""

from docs.site.docstrings import described


def test_a_paragraph_of_descriptions_becomes_a_list() -> None:
    lines = [
        "Read a file.",
        "",
        "path, name: of the file, and",
        "    where it is: here.",
        "more: of it.",
        "",
        "Raises `ValueError`.",
    ]
    assert described(lines) == [
        "Read a file.",
        "",
        "* ``path``, ``name``: of the file, and",
        "  where it is: here.",
        "* ``more``: of it.",
        "",
        "Raises `ValueError`.",
    ]


def test_prose_and_examples_stay_as_they_are() -> None:
    lines = [
        "Raises one of two errors, of which the",
        "second: is rare.",
        "",
        ">>> print(1)",
        "1",
        "",
        "    indented: code",
    ]
    assert described(lines) == lines
