"""Messages as columns in Arrow's layout, and the checks that make them safe to store."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview
"""Contiguous memory; ``memoryview(x)`` makes one of whatever lends its memory, such as a ``pyarrow.Buffer``."""


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Byte strings as Arrow lays them out: item i is ``data[offsets[i]:offsets[i + 1]]``, offsets are int32.

    The buffers may be longer than needed, and the first offset need not be 0.
    """

    offsets: Buffer
    data: Buffer


@dataclass(frozen=True, slots=True)
class HeaderColumns:
    """Headers as an Arrow list of structs: message i has those from ``offsets[i]`` to before ``offsets[i + 1]``."""

    offsets: Buffer
    names: BinaryColumn
    values: BinaryColumn


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """``count`` messages as columns; ``sequence_ids`` and ``published_ms`` are int64.

    ``keys`` None: no message has a key. ``keys_validity`` None: all have. Its bits are in Arrow's order, lowest first,
    and begin at bit 0. ``headers`` None: no message has headers. ``values_validity`` has the same form as the validity
    of the keys. None: no value is null. ``is_checked``: the caller has checked that the offsets of values and keys
    never decrease and that the sequence ids grow, as a library of columns does faster than Python.
    """

    count: int
    values: BinaryColumn
    sequence_ids: Buffer
    published_ms: Buffer
    keys: BinaryColumn | None = None
    keys_validity: Buffer | None = None
    headers: HeaderColumns | None = None
    values_validity: Buffer | None = None
    is_checked: bool = False


# -- columns of Python values -------------------------------------------------------------------------


def validity_of(items: Sequence[bytes | None]) -> bytes | None:
    """Return the validity bits of these items, lowest first; None: all are valid."""
    if None not in items:
        return None
    present = "".join("0" if item is None else "1" for item in reversed(items))
    return int(present, 2).to_bytes((len(items) + 7) // 8, "little")


def packed(code: str, numbers: Iterable[int]) -> memoryview:
    """Return the numbers in an array of fixed width."""
    try:
        return memoryview(array(code, numbers)).cast("B")
    except OverflowError as error:
        raise ValueError(f"a number does not fit its column: {error}") from error


# -- checks and cutting to size -----------------------------------------------------------------------


def exactly(buffer: Buffer, size: int, what: str) -> memoryview:
    """Return the first ``size`` bytes of ``buffer``; ValueError where it is shorter."""
    view = memoryview(buffer).cast("B")
    if len(view) < size:
        raise ValueError(f"the buffer of {what} has {len(view)} bytes where {size} are needed")
    return view[:size]


def trimmed(
    column: BinaryColumn, count: int, what: str, first: int = 0, is_checked: bool = False
) -> tuple[memoryview, memoryview]:
    """
    Return offsets from 0 and data of ``count`` items from item ``first`` on; ValueError where they do not fit.

    ``is_checked``: the offsets are known not to decrease.
    """
    buffer = memoryview(column.offsets).cast("B")[4 * first :]
    offsets, start, stop = rebased(exactly(buffer, 4 * (count + 1), f"{what} offsets"), what, is_checked)
    return offsets, exactly(column.data, stop, what)[start:]


def rebased(buffer: memoryview, what: str, is_checked: bool = False) -> tuple[memoryview, int, int]:
    """
    Return int32 offsets shifted to begin at 0, and the original first and last offset; ValueError if the offsets
    decrease.
    """
    numbers = buffer.cast("i")
    start, stop = numbers[0], numbers[-1]
    if start == 0 <= stop and is_checked:
        return buffer, start, stop
    offsets = numbers.tolist()
    # Comparing with the sorted list costs no Python work for each item.
    if start < 0 or offsets != sorted(offsets):
        raise ValueError(f"the offsets of {what} fall")
    if start:
        buffer = packed("i", (offset - start for offset in offsets))
    return buffer, start, stop


def validity_bytes(validity: Buffer | None, count: int, what: str, first: int = 0) -> bytes:
    """Return ``count`` validity bits from bit ``first`` on in whole bytes, the rest of the last one zero.

    ``validity`` None: all are valid.
    """
    bits = (1 << count) - 1
    if validity is not None:
        bits &= int.from_bytes(exactly(validity, (first + count + 7) // 8, f"{what} validity"), "little") >> first
    return bits.to_bytes((count + 7) // 8, "little")
