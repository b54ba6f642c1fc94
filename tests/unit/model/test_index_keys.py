from __future__ import annotations

from itertools import pairwise, product
from typing import Any

import pytest

from txnframework.model.index_keys import Component, decode, encode, prefix_range, range_below
from txnframework.model.metadata import IndexRange

# Every byte that means something to the encoding, and a neighbour of each.
BYTE_ALPHABET = (b"\x00", b"\x01", b"\x02", b"\x10", b"\xfe", b"\xff")
STR_ALPHABET = ("\x00", "\x01", "\x02", "-", "/", "a", "\x7f", "é", "\U0001f6b2")
INTS = (0, 1, 2, 254, 255, 256, 257, 65535, 65536, 2**31, 2**63 - 1, 2**64, 2**128 - 1, 2**128, 2**2040 - 1)
TYPE_ORDER = {bytes: 0, str: 1, int: 2}

MIXED: tuple[Component, ...] = ("", "\x00", "\x01", "a", "a/b", "sub", "sub-2", b"", b"\x00", b"a", 0, 1, 255, 256)


def words(alphabet: tuple[Any, ...], length_max: int) -> list[Any]:
    """Return every word over an alphabet."""
    empty = alphabet[0][:0]
    return [empty.join(word) for length in range(length_max + 1) for word in product(alphabet, repeat=length)]


def rank(components: tuple[Component, ...]) -> list[tuple[int, Component]]:
    """Return what decides the order of keys: type first, then value, component by component."""
    return [(TYPE_ORDER[type(component)], component) for component in components]


def holds(where: IndexRange, key: bytes) -> bool:
    """Return whether a store would find this key in the range."""
    return where.start <= key < where.stop


@pytest.mark.parametrize(
    "values", [words(BYTE_ALPHABET, 4), words(STR_ALPHABET, 3), list(INTS)], ids=["bytes", "str", "int"]
)
def test_byte_order_is_component_order_and_no_component_is_a_prefix(values: list[Any]) -> None:
    """Exhaustive over small alphabets: the order is kept, each component round-trips, none begins another."""
    encoded = [encode(value) for value in sorted(values)]
    assert encoded == sorted(encoded)
    # In a sorted list whatever begins with an element follows it at once.
    assert not [pair for pair in pairwise(encoded) if pair[1].startswith(pair[0])]
    for value in values:
        assert decode(encode(value)) == (value,)


def test_keys_of_several_components_sort_as_their_components() -> None:
    """All keys of up to three components out of a difficult set: order, round trip and difference."""
    keys = [key for length in range(4) for key in product(MIXED, repeat=length)]
    keys.sort(key=rank)
    encoded = [encode(*key) for key in keys]
    assert encoded == sorted(encoded)
    assert len(set(encoded)) == len(keys)
    assert [decode(key) for key in encoded] == keys


def test_a_prefix_range_holds_exactly_the_keys_that_begin_with_it() -> None:
    """A range for ``sub`` excludes ``sub-2``, and a range for ``a`` excludes ``a/b``."""
    keys = [key for length in range(3) for key in product(MIXED, repeat=length)]
    for prefix in keys:
        where = prefix_range("index", *prefix)
        expected = [key for key in keys if rank(key[: len(prefix)]) == rank(prefix)]
        assert [key for key in keys if holds(where, encode(*key))] == expected
        assert where.index == "index"


def test_a_range_below_ends_with_its_upper_bound() -> None:
    """Deadlines up to now: whatever follows the int component is found with it; other prefixes and types are not."""
    times = (0, 1, 255, 256, 257, 1_700_000_000_000)
    keys = [(state, time, *rest) for state in ("A", "AB") for time in times for rest in ((), ("id",), (2**128 - 1,))]
    other: list[tuple[Component, ...]] = [("A",), ("A", "text"), ("A", b"\xff"), ("",), ("B", 0)]
    for upper in (*times, 2, 300, 2**64):
        where = range_below("index", "A", upper)
        expected = [key for key in keys if key[0] == "A" and isinstance(key[1], int) and key[1] <= upper]
        assert [key for key in (*keys, *other) if holds(where, encode(*key))] == expected
    assert holds(range_below("index", 5), encode(5, "id"))
    assert not holds(range_below("index", 5), encode(6))


def test_a_negative_upper_bound_gives_an_empty_range() -> None:
    """Now minus an age is negative while a virtual clock is young."""
    where = range_below("index", "A", -1)
    assert where.start == where.stop
    assert where.start > encode("A")


def test_the_encoding_never_changes() -> None:
    """These bytes are stored in indexes: golden."""
    assert encode("sub", 1_700_000_000_000, b"\x00\x01\x02").hex() == "20737562003006018bcfe5680010010101020200"
    assert encode("", 0, b"") == b"\x20\x00\x30\x00\x10\x00"
    assert encode("é").hex() == "20c3a900"
    assert encode() == b""


@pytest.mark.parametrize("component", [True, 1.5, None, ("a",), bytearray(b"a")])
def test_other_types_are_refused(component: Any) -> None:
    """A bool would be decoded as an int."""
    with pytest.raises(TypeError):
        encode(component)


@pytest.mark.parametrize("component", [-1, 2**2040, "\ud800"])
def test_values_without_an_encoding_are_refused(component: Component) -> None:
    """Negative numbers, endless ones, and text without UTF-8."""
    with pytest.raises(ValueError, match=r"index key|surrogates"):
        encode(component)


@pytest.mark.parametrize("upper", ["text", True, None])
def test_the_upper_bound_is_an_int(upper: Any) -> None:
    """A mistyped call fails at once, instead of finding nothing."""
    with pytest.raises(TypeError):
        range_below("index", "A", upper)


def test_only_what_encode_returns_is_decoded() -> None:
    """Every proper prefix within a component, needless zero bytes, lone escapes and unknown tags are refused."""
    for component in ("ab", b"\x00\x01", 256):
        key = encode(component)
        for end in range(1, len(key)):
            with pytest.raises(ValueError, match=r"index key|utf-8"):
                decode(key[:end])
    for text in ("40", "30020001", "3001", "2001", "200100", "20010300", "20ff00", "00", "2061"):
        with pytest.raises(ValueError, match=r"index key|utf-8"):
            decode(bytes.fromhex(text))
