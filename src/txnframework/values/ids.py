"""Ids of transactions and of the branches that write in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec

COORDINATOR_BITS = 16
NUMBER_BITS = 112
LOG_FAMILY_BIT = 1 << (COORDINATOR_BITS - 1)
"""Set in the ids of coordinators of the log family."""
LOG_FAMILY = "log"
METADATA_FAMILY = "metadata"


@dataclass(frozen=True, slots=True, order=True)
class TxnID:
    """128 bits: the coordinator (16, its highest bit set for the log family) and a counter that never repeats."""

    coordinator: int
    number: int

    def __post_init__(self) -> None:
        if not (0 <= self.coordinator < 1 << COORDINATOR_BITS and 0 <= self.number < 1 << NUMBER_BITS):
            raise ValueError(f"transaction id out of range: {self.coordinator}, {self.number}")

    def __str__(self) -> str:
        """Return the 32 lower-case hex digits used in keys; fixed width, so that no id is a prefix of another."""
        return f"{self.coordinator << NUMBER_BITS | self.number:032x}"

    @property
    def family(self) -> str:
        """The family that it belongs to, ``log`` or ``metadata``: the highest bit of its coordinator's id says so."""
        return LOG_FAMILY if self.coordinator & LOG_FAMILY_BIT else METADATA_FAMILY

    @classmethod
    def parse(cls, text: str) -> TxnID:
        """Return the id written as 32 lower-case hex digits, or raise ValueError."""
        if len(text) != 32 or text.strip("0123456789abcdef"):
            raise ValueError(f"{text!r} is not a transaction id (32 lower-case hex digits)")
        return cls(int(text[:4], 16), int(text[4:], 16))


TxnText = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""A transaction's id as documents hold it; whatever is decoded as one can be parsed."""


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """One writer's part of a transaction: 0 is the beginner's, every other one is 63 random bits."""

    txn_id: TxnID
    number: int = 0

    def __hash__(self) -> int:
        # Branches are looked up all the time: at once, without that of the transaction's id by itself.
        return hash((self.txn_id.coordinator, self.txn_id.number, self.number))


BRANCH_BITS = 63
"""A branch number fits a signed 64-bit integer, so that every store and Arrow can hold it."""
