from __future__ import annotations

from array import array

import pytest

from txnframework.model.key_hashes import key_hash, key_hashes, keyless_hash, keyless_hashes

# Published vectors of MurmurHash3_x86_32 with seed 0.
MURMUR3 = {
    b"": 0x00000000,
    b"hello": 0x248BFA47,
    b"hello, world": 0x149BBB7F,
    b"The quick brown fox jumps over the lazy dog": 0x2E4FF723,
    b"test": 0xBA6BD213,
    b"\xff\xff\xff\xff": 0x76293B50,
    b"\x21\x43\x65\x87": 0xF55B516B,
    b"\x21\x43\x65": 0x7E4A8634,
    b"\x21\x43": 0xA0F7B07A,
    b"\x21": 0x72661CF4,
    b"\x00\x00\x00\x00": 0x2362F9DE,
    b"\x00": 0x514E28B7,
}


@pytest.mark.parametrize(("key", "full"), MURMUR3.items())
def test_the_hash_is_the_low_half_of_murmur3(key: bytes, full: int) -> None:
    """Any other client of the same topic computes the same segment."""
    assert key_hash(key) == full & 0xFFFF


def test_messages_without_a_key_spread_by_producer_and_sequence() -> None:
    """The values are part of the stored format: a retry by a later release must find the first copy's segment."""
    assert [keyless_hash("p", sequence) for sequence in (0, 1, 2, -1, 2**63 - 1)] == [49289, 27709, 32883, 2256, 9414]
    assert keyless_hash("é", 0) == 62147
    assert len({keyless_hash("producer", sequence) for sequence in range(1000)}) > 950


def test_columns_hash_as_their_rows_do() -> None:
    """The vectorised forms agree with the single ones, also for a column cut out of a larger one."""
    keys = list(MURMUR3)
    data = b"".join(keys)
    offsets = array("i", [0])
    for key in keys:
        offsets.append(offsets[-1] + len(key))
    expected = [key_hash(key) for key in keys]
    assert key_hashes(memoryview(offsets), data).tolist() == expected
    assert key_hashes(memoryview(offsets)[3:6], memoryview(data)).tolist() == expected[3:5]
    assert key_hashes(array("q", [0]), b"").tolist() == []
    assert keyless_hashes("p", range(5)).tolist() == [keyless_hash("p", sequence) for sequence in range(5)]
