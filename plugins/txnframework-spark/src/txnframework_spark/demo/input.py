"""The input, and the outputs that plain Python makes of it.

The input is the MovieLens ratings that PySpark ships, or any CSV or JSONL file; a row's id is its line number. Every
defect of a file is reported in one sentence with the file and the line.

The expected outputs are computed without any code of the pipeline. ``pipeline`` expresses the same in Spark. The two
are separate on purpose: a mistake in one of them shows as a difference.

* ``enriched`` has every row. For ratings: numbers as numbers, the time as ISO 8601, the stars. For other files: the
  fields unchanged. Both have a digest of the message.
* ``alerts`` has the ratings of four stars and more. For other files it has the rows whose digest begins with ``0`` or
  ``1`` (one in eight).
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Final

from txnframework_spark.errors import UnusableInput

ROWS_MAX: Final = 1_000_000
ROW_BYTES_MAX: Final = 1_000_000
_MOVIELENS: Final = ("user", "movie", "rating", "timestamp")
_RATING_LINE: Final = re.compile(rb"\s*\d+::\d+::\d+(\.\d+)?::\d+\s*")
_WHOLE: Final = re.compile(r"[0-9]{1,12}")
_DECIMAL: Final = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?")
_TIMESTAMP_MAX: Final = 253_402_300_799


class InputFormat(Enum):
    """The format of a file, which determines how the pipeline processes its rows."""

    MOVIELENS = "movielens"
    CSV = "csv"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row: its first line in the file, from 1, and its fields as text (JSON values other than text: as JSON)."""

    line: int
    fields: dict[str, str]

    def to_message(self) -> bytes:
        """Return the row as the value of a message."""
        document = {"line": self.line, "fields": self.fields}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def key(self) -> bytes:
        """The message's key: rows of one user stay in order; in files without users each row has its own key."""
        return self.fields.get("user", str(self.line)).encode()[:100]


@dataclass(frozen=True, slots=True)
class Input:
    """All rows of a file."""

    path: Path
    kind: InputFormat
    rows: tuple[InputRow, ...]


def movielens_path() -> Path:
    """Return the ratings inside the installed PySpark; UnusableInput if this PySpark does not contain them."""
    import pyspark  # takes a second, which --help and invalid input should not cost

    path = Path(pyspark.__file__).parent / "data" / "mllib" / "als" / "sample_movielens_ratings.txt"
    if not path.is_file():
        raise UnusableInput(path, "this PySpark has no sample data; set a file with --input")
    return path


def read_input(path: Path) -> Input:
    """Return all rows of the file, or raise UnusableInput with the defect and its line."""
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        raise UnusableInput(path, "is a directory, not a file") from error
    except OSError as error:
        raise UnusableInput(path, f"cannot be read: {(error.strerror or str(error)).lower()}") from error
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    kind = _kind_of(path, next((line for line in lines if line.strip()), b""))
    rows = tuple(_bounded(path, _READERS[kind](path, lines)))
    if not rows:
        raise UnusableInput(path, "has no rows")
    return Input(path, kind, rows)


def _kind_of(path: Path, first: bytes) -> InputFormat:
    suffix = path.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return InputFormat.JSONL
    if suffix == ".csv":
        return InputFormat.CSV
    if _RATING_LINE.fullmatch(first):
        return InputFormat.MOVIELENS
    return InputFormat.JSONL if first.lstrip()[:1] in (b"{", b"[") else InputFormat.CSV


def _bounded(path: Path, rows: Iterator[InputRow]) -> Iterator[InputRow]:
    """Pass on rows that fit into a message, and at most as many as the comparison can hold in memory."""
    for number, row in enumerate(rows, 1):
        if number > ROWS_MAX:
            raise UnusableInput(path, f"has more than {ROWS_MAX:,} rows, the limit of the demo", row.line)
        try:
            size = len(row.to_message())
        except UnicodeEncodeError as error:
            raise UnusableInput(path, "contains half of a surrogate pair, which is not valid text", row.line) from error
        if size > ROW_BYTES_MAX:
            raise UnusableInput(path, f"the row is larger than {ROW_BYTES_MAX:,} bytes", row.line)
        yield row


def _text(path: Path, line: int, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte 0x{data[error.start]:02x} at column {error.start + 1}"
        raise UnusableInput(path, reason, line) from error


def _read_movielens(path: Path, lines: list[bytes]) -> Iterator[InputRow]:
    for number, data in enumerate(lines, 1):
        text = _text(path, number, data).strip()
        if not text:
            continue
        fields = text.split("::")
        if len(fields) != len(_MOVIELENS):
            expected = "::".join(_MOVIELENS)
            raise UnusableInput(path, f"expected {len(_MOVIELENS)} fields ({expected}), found {len(fields)}", number)
        row = dict(zip(_MOVIELENS, fields, strict=True))
        _check_rating(path, number, row)
        yield InputRow(number, row)


def _check_rating(path: Path, line: int, row: dict[str, str]) -> None:
    for name, value in row.items():
        form = _DECIMAL if name == "rating" else _WHOLE
        if not form.fullmatch(value):
            raise UnusableInput(path, f"the {name} is not a number: {value!r}", line)
    if int(row["timestamp"]) > _TIMESTAMP_MAX:
        raise UnusableInput(path, f"the timestamp is after the year 9999: {row['timestamp']!r}", line)


def _read_csv(path: Path, lines: list[bytes]) -> Iterator[InputRow]:
    texts = (f"{_text(path, number, data)}\n" for number, data in enumerate(lines, 1))
    reader = csv.reader(texts, strict=True)
    header: list[str] | None = None
    begins = 1
    while True:
        try:
            record = next(reader, None)
        except csv.Error as error:
            # The line on which the row begins: an unclosed quote is detected only at the end of the file.
            raise UnusableInput(path, f"not CSV: {error}", begins) from error
        if record is None:
            return
        line, begins = begins, reader.line_num + 1
        if not record:
            continue
        if header is None:
            header = _header(path, line, record)
        elif len(record) != len(header):
            raise UnusableInput(path, f"expected {len(header)} fields as in the header, found {len(record)}", line)
        else:
            yield InputRow(line, dict(zip(header, record, strict=True)))


def _header(path: Path, line: int, names: list[str]) -> list[str]:
    for number, name in enumerate(names):
        if not name.strip():
            raise UnusableInput(path, f"column {number + 1} of the header has no name", line)
        if name in names[:number]:
            raise UnusableInput(path, f"the header names the column {name!r} twice", line)
    return names


def _read_jsonl(path: Path, lines: list[bytes]) -> Iterator[InputRow]:
    for number, data in enumerate(lines, 1):
        text = _text(path, number, data)
        if not text.strip():
            continue
        try:
            document = json.loads(text)
        except json.JSONDecodeError as error:
            raise UnusableInput(path, f"not JSON: {error.msg} at column {error.colno}", number) from error
        except (ValueError, RecursionError) as error:
            raise UnusableInput(
                path, "cannot be parsed as JSON: a number is too long, or the nesting is too deep", number
            ) from error
        if not isinstance(document, dict):
            raise UnusableInput(path, f"expected a JSON object, found {_JSON_NAMES[type(document)]}", number)
        yield InputRow(number, {name: _as_text(value) for name, value in document.items()})


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_JSON_NAMES: Final[dict[type, str]] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}

_READERS: Final[dict[InputFormat, Callable[[Path, list[bytes]], Iterator[InputRow]]]] = {
    InputFormat.MOVIELENS: _read_movielens,
    InputFormat.CSV: _read_csv,
    InputFormat.JSONL: _read_jsonl,
}


ENRICHED: Final = "enriched"
ALERTS: Final = "alerts"
OUTPUTS: Final = (ENRICHED, ALERTS)
ALERT_RATING_MIN: Final = 4.0
ALERT_DIGESTS: Final = ("0", "1")

Value = Mapping[str, object]
"""An output row's value: a JSON object, without the row's origin."""


def expected_outputs(kind: InputFormat, rows: Iterable[InputRow]) -> dict[str, dict[int, Value]]:
    """Return the expected values of each output, by line number."""
    enriched: dict[int, Value] = {}
    alerts: dict[int, Value] = {}
    for row in rows:
        value = _enriched(kind, row)
        enriched[row.line] = value
        if _is_alert(kind, row):
            alerts[row.line] = _alert(kind, row, value)
    return {ENRICHED: enriched, ALERTS: alerts}


def _digest(row: InputRow) -> str:
    return hashlib.sha256(row.to_message()).hexdigest()[:16]


def _enriched(kind: InputFormat, row: InputRow) -> Value:
    if kind is not InputFormat.MOVIELENS:
        return {"line": row.line, "fields": row.fields, "digest": _digest(row)}
    rating = float(row.fields["rating"])
    rated_at = datetime.fromtimestamp(int(row.fields["timestamp"]), UTC)
    return {
        "line": row.line,
        "user": int(row.fields["user"]),
        "movie": int(row.fields["movie"]),
        "rating": rating,
        "stars": "*" * int(rating),
        "rated_at": f"{rated_at:%Y-%m-%dT%H:%M:%SZ}",
        "digest": _digest(row),
    }


def _is_alert(kind: InputFormat, row: InputRow) -> bool:
    if kind is InputFormat.MOVIELENS:
        return float(row.fields["rating"]) >= ALERT_RATING_MIN
    return _digest(row).startswith(ALERT_DIGESTS)


def _alert(kind: InputFormat, row: InputRow, enriched: Value) -> Value:
    if kind is not InputFormat.MOVIELENS:
        return {"line": row.line, "reason": f"digest {enriched['digest']}"}
    reason = f"user {row.fields['user']} gave movie {row.fields['movie']} {enriched['stars']}"
    return {"line": row.line, "reason": reason}
