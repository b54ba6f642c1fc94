"""Reading of the outputs by a new client and a new subscription, from the beginning."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from txnframework import Isolation, Message, blocking
from txnframework.errors import ReceiveTimeout
from txnframework.model.positions import Position
from txnframework_spark.demo.check import OutputRow, Place

_RECEIVE_MAX: Final = 500
_SILENCE_MS: Final = 1_000
"""The time without a new message after which reading ends, if all expected messages have arrived."""
_PATIENCE_MS: Final = 10_000
"""The same if messages are missing."""


def read_output(config: Path, topic: str, output: str, expected: int, segments: Mapping[int, str]) -> list[OutputRow]:
    """Return every row of an output that a consumer receives; ``segments``: names of the input's segments by id."""
    rows: list[OutputRow] = []
    with blocking.open(config) as client, client.consumer(topic, _new_name(), start="earliest") as consumer:
        while True:
            wait_ms = _SILENCE_MS if len(rows) >= expected else _PATIENCE_MS
            try:
                messages = consumer.receive_many(messages_max=_RECEIVE_MAX, timeout_ms=wait_ms)
            except ReceiveTimeout:
                return rows
            rows.extend(output_row(output, message, segments) for message in messages)
            consumer.ack(*messages)


def count_discarded(config: Path, topic: str) -> int:
    """Return the number of stored rows in a topic that are not committed, and so hidden from consumers."""
    with (
        blocking.open(config) as client,
        client.reader(topic, isolation=Isolation.READ_UNCOMMITTED) as reader,
    ):
        return sum(not message.committed for message in reader)


def output_row(output: str, message: Message, segments: Mapping[int, str]) -> OutputRow:
    """Return a message as evidence; an unreadable one has no line, which is a finding."""
    txn = None if message.txn_id is None else str(message.txn_id)
    try:
        document = json.loads(message.value or b"")
        place = document.pop("place")
        position = Position(int(place["ledger"]), int(place["entry"]), int(place["index"]))
        return OutputRow(output, txn, int(document["line"]), Place(segments[place["segment"]], position), document)
    except (ValueError, KeyError, TypeError, AttributeError):
        return OutputRow(output, txn, None, None, {"unreadable": repr(message.value and message.value[:200])})


def _new_name() -> str:
    return f"check-{secrets.token_hex(4)}"
