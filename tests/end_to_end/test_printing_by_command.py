"""What the command line has printed, and what it could not print."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from txnframework.cli._consume import print_message
from txnframework.client import Message


def test_what_could_not_be_printed_comes_again(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was printed is acknowledged although the disk is full, and nothing else is."""
    cli("topic", "create", "orders")
    cli("topic", "produce", "orders", "one", "two", "three")

    def print_some(message: Message, output: str) -> None:
        if message.value == b"two":
            raise OSError(errno.ENOSPC, "No space left on device")
        print_message(message, output)

    with monkeypatch.context() as full:
        full.setattr("txnframework.cli._consume.print_message", print_some)
        refused = cli("topic", "consume", "orders", "--subscription", "billing")
    assert (refused.status, refused.out) == (1, "one\n")
    assert "No space left" in refused.err
    assert cli("topic", "consume", "orders", "--subscription", "billing").out.split() == ["two", "three"]
