"""Whole columns hash to what the stored format says, for whatever keys there are."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from txnframework.model.key_hashes import key_hash, keyless_hash
from txnframework_spark.sink.rows import key_hashes, keyless_hashes


def any_key(chance: random.Random) -> bytes | None:
    if chance.random() < 0.1:
        return None
    longest = chance.choice((0, 3, 4, 8, 40, 256, 300))
    return chance.randbytes(chance.randint(0, longest))


@pytest.mark.parametrize("seed", range(60))
def test_keys_hash_as_one_by_one(seed: int) -> None:
    """Of any length, aligned in any way, in a slice, with nulls among them."""
    chance = random.Random(seed)
    keys = [any_key(chance) for _ in range(chance.choice((0, 1, 2, 50)))]
    skipped = chance.randint(0, 3)
    array = pa.array([b"before"] * skipped + keys + [b"after"], pa.binary()).slice(skipped, len(keys))
    found = key_hashes(array)
    assert len(found) == len(keys)
    assert all(at == key_hash(key) for at, key in zip(found, keys, strict=True) if key is not None)


@pytest.mark.parametrize("seed", range(20))
def test_rows_without_a_key_hash_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    producer = "".join(chance.choices("abcé/0", k=seed))
    sequences = [chance.randint(-(2**63), 2**63 - 1) for _ in range(chance.choice((0, 1, 40)))] + [0, -1, 2**63 - 1]
    found = keyless_hashes(producer, np.array(sequences, np.int64))
    assert found.tolist() == [keyless_hash(producer, sequence) for sequence in sequences]


def test_every_length_of_key_has_its_own_way_through() -> None:
    """From none to longer than what is hashed by column, each beside the next longer one."""
    keys = [bytes(range(length % 256)) + bytes(length - length % 256) for length in range(270)]
    for pair in pairwise(keys):
        assert key_hashes(pa.array(pair, pa.binary())).tolist() == [key_hash(key) for key in pair]
