"""``txnframework.model.hashing`` for whole columns: the same values, with no Python work for each row.

Murmur3 processes a key in blocks of four bytes. As numpy arrays, all keys process their first block together, then all
keys with a second block, and so on. So the Python work grows with the longest key, not with the number of rows.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnframework.model.hashing import key_hash

Hashes = npt.NDArray[np.uint16]
_Words = npt.NDArray[np.uint32]
_Places = npt.NDArray[np.int64]

_SEQUENCE_BYTES: Final = 8
_COLUMN_BYTES_MAX: Final = 256
"""Longer keys are hashed individually: many blocks for a few rows would cost more."""

_REST_MASKS: Final = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


def key_hashes(keys: pa.Array) -> Hashes:
    """Return ``key_hash`` of each key of a binary array; the value for a null key is undefined."""
    count = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    if not count:
        return np.zeros(0, np.uint16)
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    # The last word of a key is read whole, so the data is padded.
    data = np.zeros(int(offsets[-1]) + 4, np.uint8)
    if data_buffer is not None:
        data[:-4] = np.frombuffer(data_buffer, np.uint8, int(offsets[-1]))
    starts, lengths = offsets[:-1], np.diff(offsets)
    found = _of_columns(data, starts, np.where(lengths > _COLUMN_BYTES_MAX, 0, lengths))
    for row in np.flatnonzero(lengths > _COLUMN_BYTES_MAX):
        found[row] = key_hash(data[starts[row] : starts[row] + lengths[row]].tobytes())
    return found


def keyless_hashes(producer: str, sequences: _Places) -> Hashes:
    """Return ``keyless_hash`` of each sequence id."""
    name = producer.encode()
    numbers = np.ascontiguousarray(sequences, "<i8").view("<u4").reshape(-1, 2)
    hashes = _mixed(_mixed(np.zeros(len(numbers), np.uint32), numbers[:, 0]), numbers[:, 1])
    padded = np.frombuffer(name + bytes(-len(name) % 4), "<u4")
    whole = len(name) // 4
    for word in padded[:whole]:
        hashes = _mixed(hashes, np.full(1, word, np.uint32))
    if len(name) % 4:
        hashes = hashes ^ _scrambled(padded[whole:].astype(np.uint32))
    return _finished(hashes, np.full(1, _SEQUENCE_BYTES + len(name), np.uint32))


def _of_columns(data: npt.NDArray[np.uint8], starts: _Places, lengths: _Places) -> Hashes:
    # One word from each byte offset, so that keys of any alignment can be read.
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    hashes = np.zeros(len(starts), np.uint32)
    blocks = lengths >> 2
    longest = int(blocks.max(initial=0))
    everywhere = int(blocks.min(initial=0))
    for block in range(everywhere):
        hashes = _mixed(hashes, words[starts + 4 * block])
    left = np.arange(len(starts))
    for block in range(everywhere, longest):
        left = left[blocks[left] > block]
        hashes[left] = _mixed(hashes[left], words[starts[left] + 4 * block])
    rest = words[starts + 4 * blocks] & _REST_MASKS[lengths & 3]
    return _finished(hashes ^ _scrambled(rest), lengths.astype(np.uint32))


def _scrambled(words: _Words) -> _Words:
    words = words * np.uint32(0xCC9E2D51)
    words = (words << np.uint32(15)) | (words >> np.uint32(17))
    return words * np.uint32(0x1B873593)


def _mixed(hashes: _Words, words: _Words) -> _Words:
    hashes = hashes ^ _scrambled(words)
    hashes = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
    return hashes * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(hashes: _Words, lengths: _Words) -> Hashes:
    hashes = hashes ^ lengths
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return (hashes ^ (hashes >> np.uint32(16))).astype(np.uint16)
