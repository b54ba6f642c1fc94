"""
The input rows, and the outputs that plain Python makes of them.

A row is a message; it is identified by its line in the file. Output `enriched` has every row with a digest of its
message. Output `alerts` has the rows whose digest begins with 0 or 1, which is one in eight. `pipeline.py` computes the
same in Spark. The two share no code on purpose: a mistake in one of them shows as a difference.
"""

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENRICHED, ALERTS = OUTPUTS = ("enriched", "alerts")
RATING_FIELDS = ("user", "movie", "rating", "timestamp")


class UnusableFile(Exception):
    """A file or folder that the demo cannot use; the text says why."""


@dataclass(frozen=True, slots=True)
class Row:
    line: int
    fields: dict[str, str]

    def message(self) -> bytes:
        return json.dumps({"line": self.line, "fields": self.fields}, ensure_ascii=False).encode()

    @property
    def key(self) -> bytes:
        """Rows of one user stay in order."""
        return self.fields.get("user", str(self.line)).encode()[:100]


def shipped_ratings() -> Path:
    """Return the file of 1,501 MovieLens ratings that PySpark ships."""
    import pyspark  # takes a second, which --help should not cost

    return Path(pyspark.__file__).parent / "data" / "mllib" / "als" / "sample_movielens_ratings.txt"


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file: CSV with a header, JSON lines, or ratings; UnusableFile says what is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    lines = text.split("\n")
    if text.lstrip()[:1] in ("{", "["):
        rows = json_rows(path, lines)
    elif "::" in lines[0]:
        rows = rating_rows(path, lines)
    else:
        rows = csv_rows(path, lines)
    found = list(rows)
    if not found:
        raise UnusableFile(f"{path}: has no rows")
    return found


def rating_rows(path: Path, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        values = line.strip().split("::")
        if len(values) == len(RATING_FIELDS):
            yield Row(number, dict(zip(RATING_FIELDS, values, strict=True)))
        elif line.strip():
            raise UnusableFile(f"{path}, line {number}: expected {'::'.join(RATING_FIELDS)}")


def csv_rows(path: Path, lines: list[str]) -> Iterator[Row]:
    reader = csv.DictReader((f"{line}\n" for line in lines), strict=True)
    try:
        for fields in reader:
            # What is too much has the name None, and what is missing is None.
            if None in fields or None in fields.values():
                raise UnusableFile(f"{path}, line {reader.line_num}: expected as many fields as in the header")
            yield Row(reader.line_num, fields)
    except csv.Error as error:
        raise UnusableFile(f"{path}, line {reader.line_num + 1}: not CSV: {error}") from error


def json_rows(path: Path, lines: list[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError as error:
            raise UnusableFile(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(document, dict):
            raise UnusableFile(f"{path}, line {number}: expected a JSON object")
        yield Row(number, {name: as_text(value) for name, value in document.items()})


def as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def expected_outputs(rows: Iterable[Row]) -> dict[str, dict[int, Any]]:
    """Return the expected values of each output, by line."""
    expected: dict[str, dict[int, Any]] = {ENRICHED: {}, ALERTS: {}}
    for row in rows:
        digest = hashlib.sha256(row.message()).hexdigest()[:16]
        expected[ENRICHED][row.line] = {"line": row.line, "fields": row.fields, "digest": digest}
        if digest[0] in "01":
            expected[ALERTS][row.line] = {"line": row.line, "reason": f"digest {digest}"}
    return expected
