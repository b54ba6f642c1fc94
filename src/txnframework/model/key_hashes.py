"""
The hash that decides to which segment a message belongs.

It is part of the stored format: a message's retry, from another process or release, must meet its first copy in the
same segment or in that segment's ancestors.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence

import mmh3

_HASH_MASK = 0xFFFF
_SEQUENCE = struct.Struct("<q")


def key_hash(key: bytes) -> int:
    """Return the hash value of a message's key: the low 16 bits of Murmur3_32 with seed 0."""
    return mmh3.mmh3_32_uintdigest(key) & _HASH_MASK


def keyless_hash(producer: str, sequence_id: int) -> int:
    """
    Return the hash value of a message without a key.

    It depends only on the producer's name and the sequence id (64 bits, signed), so that a retry goes where its first
    copy went. An empty key is a key: ``key_hash`` handles it.
    """
    return mmh3.mmh3_32_uintdigest(_SEQUENCE.pack(sequence_id) + producer.encode()) & _HASH_MASK


def keyless_hashes(producer: str, sequence_ids: Iterable[int]) -> array[int]:
    """Return ``keyless_hash`` of each sequence id, as unsigned 16-bit values."""
    name = producer.encode()
    pack = _SEQUENCE.pack
    digest = mmh3.mmh3_32_uintdigest
    return array("H", (digest(pack(sequence_id) + name) & _HASH_MASK for sequence_id in sequence_ids))


def key_hashes(offsets: Sequence[int], data: bytes | memoryview) -> array[int]:
    """
    Return ``key_hash`` of each key of a column, as unsigned 16-bit values.

    Key ``i`` is ``data[offsets[i]:offsets[i + 1]]``, as in an Arrow binary array. For a message without a key the value
    is that of the bytes in its place: use ``keyless_hashes`` for it.
    """
    view = memoryview(data)
    digest = mmh3.mmh3_32_uintdigest
    ends = iter(offsets)
    start = next(ends)
    hashes = array("H")
    for end in ends:
        hashes.append(digest(view[start:end]) & _HASH_MASK)
        start = end
    return hashes
