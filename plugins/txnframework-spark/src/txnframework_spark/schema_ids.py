"""
Values that begin with the id of their schema, as Confluent's serializers write them: a zero byte, and four bytes of id.

The bytes after the id are Avro, JSON, or for protobuf the place of the message type and the message. The schemas
themselves are the caller's: in the program, in a table, or from a registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

_ID_BYTES = 4
_PREFIX_BYTES = 1 + _ID_BYTES


def schema_id(value: Column) -> Column:
    """Return the id at the beginning of a binary value; null if the value has none."""
    from pyspark.sql import functions as f

    number = f.conv(f.hex(f.substring(value, 2, _ID_BYTES)), 16, 10).cast("bigint")
    has_one = (f.octet_length(value) >= _PREFIX_BYTES) & (f.substring(value, 1, 1) == f.lit(b"\0"))
    return f.when(has_one, number)


def decode_by_schema_id(value: Column, decoders: Mapping[int, Callable[[Column], Column]]) -> Column:
    """
    Return a binary value decoded by its schema; null if it has no id, or one that ``decoders`` lacks.

    ``decoders``: for each id a function from the bytes after it to the decoded column. All of them return one type.
    """
    from pyspark.sql import functions as f

    data = f.substr(value, f.lit(_PREFIX_BYTES + 1))
    number, decoded = schema_id(value), f.lit(None)
    for known, decode in decoders.items():
        decoded = f.when(number == known, decode(data)).otherwise(decoded)
    return decoded


def with_schema_id(number: int, data: Column) -> Column:
    """Return encoded data with the id of its schema in front."""
    from pyspark.sql import functions as f

    return f.concat(f.lit(b"\0" + number.to_bytes(_ID_BYTES, "big")), data)
