"""Which functions can be handlers, and which handlers get the transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from txnframework.client._handlers.handler_functions import handler_function
from txnframework.errors import InvalidInput


async def alone(message: object) -> None:
    pass


async def with_txn(message: object, txn: object) -> None:
    pass


async def with_optional(message: object, txn: object = None) -> None:
    pass


async def with_named(message: object, *, txn: object = None) -> None:
    pass


async def with_any(*arguments: object) -> None:
    pass


class Billing:
    """A handler that is an object."""

    async def __call__(self, message: object) -> None:
        pass

    async def bill(self, message: object, txn: object) -> None:
        pass


@pytest.mark.parametrize(
    ("handler", "takes"),
    [
        (alone, False),
        (with_txn, True),
        (with_optional, True),
        (with_named, False),
        (with_any, True),
        (partial(with_txn, "first"), False),
        (partial(with_txn, txn=None), False),
        (Billing(), False),
        (Billing().bill, True),
        (lambda message: None, False),
        (max, True),
    ],
)
def test_who_gets_the_transaction(handler: Callable[..., Any], takes: bool) -> None:
    """Any handler that can be called with two arguments gets the transaction, also if its signature is unknown."""
    assert handler_function(handler, takes_several=False).takes_transaction is takes


@pytest.mark.parametrize("handler", [None, "bill", lambda: None, lambda _one, _two, _three: None])
def test_what_is_no_handler(handler: object) -> None:
    """An invalid handler is refused before a message is received."""
    with pytest.raises(InvalidInput, match="a handler is "):
        handler_function(handler, takes_several=True)
