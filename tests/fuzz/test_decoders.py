"""Hostile input: whatever is decoded is accepted as what it is, or refused by an error of ours; never anything else."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from decoders import DECODERS, Decoder
from hypothesis import given
from hypothesis import strategies as st

BOMBS = (
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b'{"format":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b"a = " + b"[" * 100_000,
    b"a = " + b"9" * 100_000,
    b"9" * 100_000 + b":" + b"9" * 100_000,
    b"\xff" * 100_000,
    b"TXNE\x01\x00\x07\x00" + b"\xff" * 80,
    b"TXNE\x02\x00\x0f\x00" + b"\xff" * 80,
    b"TXCP\x01\xff\xff\xff\xff" + b"{}" * 50,
    b"\x0e\x01\x00\x01\xff\xff\xff\xff",
    b"\x30\xff",
)
"""What made decoders of others recurse without end, or take memory for what the input only claims to hold."""

TOKENS = (
    b"null",
    b"-1",
    b"1e400",
    b"18446744073709551616",
    b'"\\ud800"',
    b"[]",
    b"{}",
    b"true",
    b'"a b"',
    b"\xff",
    b"-",
)
PEAK_BYTES_FOR_EACH = 200
"""Text is split, compared and quoted: so many bytes for each one of the input, whatever it claims."""


@st.composite
def damaged(draw: st.DrawFn, examples: tuple[bytes, ...]) -> bytes:
    """Return an example with some of it flipped, cut out, doubled, or replaced by something that means trouble."""
    data = bytearray(draw(st.sampled_from(examples)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 24)))
        match draw(st.integers(0, 4)):
            case 0:
                data[at:until] = bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in data[at:until][:1])
            case 1:
                del data[at:until]
            case 2:
                data[at:at] = data[at:until] * draw(st.integers(1, 3))
            case 3:
                data[at:until] = draw(st.sampled_from(TOKENS))
            case 4:
                data[at:until] = draw(st.binary(max_size=8))
    return bytes(data)


@contextmanager
def only(errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Take these errors for answers."""
    with contextlib.suppress(*errors):
        yield


def decoded(decoder: Decoder, data: bytes) -> None:
    """Decode; what is accepted has to say the same once it was written again and read."""
    with only(decoder.errors):
        value = decoder.decode(data)
        if decoder.encode is not None:
            again = decoder.decode(decoder.encode(value))
            assert again == value, f"{decoder}: {data!r} is accepted as {value!r}, and comes back as {again!r}"


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_examples(decoder: Decoder) -> None:
    """What was encoded is accepted, and says the same when it is written again."""
    for example in decoder.examples:
        value = decoder.decode(example)
        if decoder.encode is not None:
            assert decoder.decode(decoder.encode(value)) == value


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@given(data=st.binary(max_size=300))
def test_any_bytes(decoder: Decoder, data: bytes) -> None:
    """No bytes make a decoder fail in a way that its callers do not know."""
    decoded(decoder, data)


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@given(choices=st.data())
def test_damaged_examples(decoder: Decoder, choices: st.DataObject) -> None:
    """Nor does what was almost right, also where sizes and checksums are."""
    data = choices.draw(damaged(decoder.examples))
    decoded(decoder, data if decoder.repair is None else decoder.repair(data))


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
def test_bombs(decoder: Decoder) -> None:
    """Nothing recurses until the interpreter gives up, and no memory is taken for what is only claimed to be there."""
    for bomb in BOMBS:
        tracemalloc.start()
        try:
            decoded(decoder, bomb if decoder.repair is None else decoder.repair(bomb))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < PEAK_BYTES_FOR_EACH * len(bomb) + 100_000, f"{decoder} took {peak} bytes for {bomb[:40]!r}"
