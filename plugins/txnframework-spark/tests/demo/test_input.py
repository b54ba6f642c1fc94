"""Reading the input: rows known by their line, and one sentence for everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from txnframework.errors import InvalidInput
from txnframework_spark.demo.input import InputFormat, movielens_path, read_input
from txnframework_spark.errors import UnusableInput


def written(directory: Path, name: str, data: bytes | str) -> Path:
    path = directory / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_the_shipped_ratings_are_1501_rows_known_by_their_line() -> None:
    """Every line of PySpark's MovieLens sample is a row."""
    source = read_input(movielens_path())
    assert source.kind is InputFormat.MOVIELENS
    assert [row.line for row in source.rows] == list(range(1, 1502))
    assert source.rows[0].fields == {"user": "0", "movie": "2", "rating": "3", "timestamp": "1424380312"}


def test_csv_rows_are_known_by_the_line_on_which_they_begin(tmp_path: Path) -> None:
    """A quoted line break belongs to its field, blank lines count as lines, and the header is no row."""
    path = written(tmp_path, "a.csv", '\ufeffname,note\r\n\r\nana,"two\r\nlines"\r\nbob,"say ""hi"""\r\n')
    source = read_input(path)
    assert source.kind is InputFormat.CSV
    assert [(row.line, row.fields) for row in source.rows] == [
        (3, {"name": "ana", "note": "two\r\nlines"}),
        (5, {"name": "bob", "note": 'say "hi"'}),
    ]


def test_json_lines_keep_text_and_write_everything_else_as_json(tmp_path: Path) -> None:
    """A field is text; what is not text in JSON becomes its JSON."""
    path = written(tmp_path, "a.jsonl", '{"name": "Zoë", "age": 3, "tags": ["x", 1], "none": null}\n\n{}\n')
    source = read_input(path)
    assert source.kind is InputFormat.JSONL
    assert [(row.line, row.fields) for row in source.rows] == [
        (1, {"name": "Zoë", "age": "3", "tags": '["x",1]', "none": "null"}),
        (3, {}),
    ]


def test_without_a_telling_name_the_first_line_says_what_a_file_is(tmp_path: Path) -> None:
    """A name that ends in .txt says nothing."""
    assert read_input(written(tmp_path, "a.txt", "1::2::3.5::4\n")).kind is InputFormat.MOVIELENS
    assert read_input(written(tmp_path, "b.txt", '{"a": 1}\n')).kind is InputFormat.JSONL
    assert read_input(written(tmp_path, "c.txt", "a,b\n1,2\n")).kind is InputFormat.CSV


def test_a_message_holds_the_line_and_the_fields(tmp_path: Path) -> None:
    """What is loaded into the topic can be read back."""
    row = read_input(written(tmp_path, "a.csv", "user,x\nana,ü\n")).rows[0]
    assert json.loads(row.to_message()) == {"line": 2, "fields": {"user": "ana", "x": "ü"}}
    assert row.key == b"ana"


@pytest.mark.parametrize(
    ("name", "data", "line", "reason"),
    [
        ("a.csv", b"", None, "has no rows"),
        ("a.csv", b"a,b\n", None, "has no rows"),
        ("a.jsonl", b"\n \n", None, "has no rows"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", 3, "expected 2 fields as in the header, found 3"),
        ("a.csv", b"a,b\n1\n", 2, "expected 2 fields as in the header, found 1"),
        ("a.csv", b"a,a\n1,2\n", 1, "the header names the column 'a' twice"),
        ("a.csv", b"a,\n1,2\n", 1, "column 2 of the header has no name"),
        ("a.csv", b'a,b\n1,2\n"1,2\n3,4\n', 3, "not CSV: unexpected end of data"),
        ("a.csv", b"a,b\n1,\xff\n", 2, "not UTF-8: byte 0xff at column 3"),
        ("a.jsonl", b'{"a": 1}\n{"a": \n', 2, "not JSON: Expecting value at column 7"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', 2, "expected a JSON object, found an array"),
        ("a.jsonl", b"null\n", 1, "expected a JSON object, found null"),
        (
            "a.jsonl",
            b"[" * 100_000 + b"\n",
            1,
            "cannot be parsed as JSON: a number is too long, or the nesting is too deep",
        ),
        ("a.jsonl", b'{"a": "\\ud800"}\n', 1, "contains half of a surrogate pair, which is not valid text"),
        ("a.jsonl", b'{"a": "' + b"x" * 1_000_000 + b'"}\n', 1, "the row is larger than 1,000,000 bytes"),
        ("a.jsonl", b'{"a": 1}\n\xfe\n', 2, "not UTF-8: byte 0xfe at column 1"),
        ("a.txt", b"1::2::3::4\n1::2::3\n", 2, "expected 4 fields (user::movie::rating::timestamp), found 3"),
        ("a.txt", b"1::2::3::4\n1::x::3::4\n", 2, "the movie is not a number: 'x'"),
        ("a.txt", b"1::2::3::999999999999\n", 1, "the timestamp is after the year 9999: '999999999999'"),
    ],
)
def test_what_is_wrong_is_one_sentence_with_file_and_line(
    tmp_path: Path, name: str, data: bytes, line: int | None, reason: str
) -> None:
    """The error names the file, the line on which the wrong row begins, and what is wrong."""
    path = written(tmp_path, name, data)
    with pytest.raises(UnusableInput) as caught:
        read_input(path)
    assert isinstance(caught.value, InvalidInput)
    assert (caught.value.line, caught.value.reason) == (line, reason)
    assert str(caught.value) == (f"{path}, line {line}: {reason}" if line else f"{path}: {reason}")


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """A missing file and a directory are told apart."""
    with pytest.raises(UnusableInput, match="cannot be read: no such file or directory"):
        read_input(tmp_path / "missing.csv")
    with pytest.raises(UnusableInput, match="is a directory, not a file"):
        read_input(tmp_path)
