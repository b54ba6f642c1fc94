"""
Keys of secondary indexes: components encoded so that byte order is component order.

No encoded component is a prefix of another one. So "everything that begins with these components" is one range of
bytes, which holds nothing else: ``sub`` never finds ``sub-2``, and ``a`` finds nothing of ``a/b``.

=========  ===============================================================================================
component  encoding
=========  ===============================================================================================
bytes      ``10``, the bytes with ``00`` written as ``01 01`` and ``01`` as ``01 02``, then ``00``
str        ``20``, its UTF-8 as above
int >= 0   ``30``, the number of bytes it needs (one byte), those bytes with the highest first
=========  ===============================================================================================

Components of different types sort as bytes, str, int. The encoding is stored and never changes.
"""

from __future__ import annotations

from txnframework.model.metadata import IndexRange

Component = str | int | bytes

_BYTES_TAG = 0x10
_STR_TAG = 0x20
_INT_TAG = 0x30
_BYTES_START = bytes((_BYTES_TAG,))
_STR_START = bytes((_STR_TAG,))
_END = b"\x00"
# Above every tag, so that prefix + this one is above everything that begins with the prefix.
_ABOVE_TAGS = b"\xff"


def encode(*components: Component) -> bytes:
    """Return the key of these components; TypeError or ValueError if one has no encoding (bool, negative, float)."""
    encoded = bytearray()
    for component in components:
        if isinstance(component, str | bytes):
            start, raw = (_STR_START, component.encode()) if isinstance(component, str) else (_BYTES_START, component)
            # NUL bytes end a component; written like this they do not change its order.
            encoded += start + raw.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + _END
            continue
        # bool is an int to Python, but would come back as one.
        if isinstance(component, bool) or not isinstance(component, int):
            raise TypeError(f"{type(component).__name__} cannot be part of an index key")
        length = (component.bit_length() + 7) // 8
        if component < 0 or length > 255:
            raise ValueError(f"{component} cannot be part of an index key")
        encoded += bytes((_INT_TAG, length)) + component.to_bytes(length, "big")
    return bytes(encoded)


def decode(key: bytes) -> tuple[Component, ...]:
    """Return the components that were encoded; ValueError if ``key`` is not exactly a result of ``encode``."""
    components: list[Component] = []
    at = 0
    while at < len(key):
        component, at = _decode_one(key, at)
        components.append(component)
    return tuple(components)


def prefix_range(index: str, *components: Component) -> IndexRange:
    """Return the range of exactly the keys that begin with these components; without any: the whole index."""
    prefix = encode(*components)
    return IndexRange(index, prefix, prefix + _ABOVE_TAGS)


def range_below(index: str, *prefix_and_upper: Component) -> IndexRange:
    """
    Return the range of the keys that begin with a prefix and continue with an int up to the last argument, inclusive.

    ``range_below("txn-by-final-state", "COMMITTED", 5)`` holds ``("COMMITTED", 5, ...)`` and not ``("COMMITTED", 6)``.
    An upper bound below zero gives an empty range: a clock may not have reached the age that is subtracted from it.
    """
    *components, upper = prefix_and_upper
    if not isinstance(upper, int) or isinstance(upper, bool):
        raise TypeError(f"the upper bound must be an int, not {type(upper).__name__}")
    prefix = encode(*components)
    start = prefix + bytes((_INT_TAG,))
    if upper < 0:
        return IndexRange(index, start, start)
    return IndexRange(index, start, prefix + encode(upper) + _ABOVE_TAGS)


def _decode_one(key: bytes, at: int) -> tuple[Component, int]:
    """Return the component that starts at ``at``, and where the next one starts."""
    tag = key[at]
    if tag == _INT_TAG:
        length = key[at + 1] if at + 1 < len(key) else 0
        end = at + 2 + length
        value = int.from_bytes(key[at + 2 : end], "big")
        component: Component = value
    elif tag in (_STR_TAG, _BYTES_TAG):
        end = key.find(_END, at) + 1
        raw = key[at + 1 : end - 1].replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01")
        component = raw if tag == _BYTES_TAG else raw.decode()
    else:
        raise ValueError(f"byte {tag:#04x} at {at} does not start a component of an index key")
    # Encoding again is the whole check: truncation, a needless zero byte, a lone escape all come out different.
    if encode(component) != key[at:end]:
        raise ValueError(f"no component of an index key ends as the one at {at} does")
    return component, end
