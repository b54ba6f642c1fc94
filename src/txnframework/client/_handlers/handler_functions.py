"""What an application passes as a handler: refused where it cannot be one, before that costs messages deliveries."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from txnframework.client._messages import Message
from txnframework.errors import InvalidInput, excerpt

BatchHandler = Callable[[tuple[Message[Any], ...], Any], Awaitable[object]]


class NotAwaitable(Exception):
    """The handler returned something that cannot be awaited; the message says what. The message is not at fault."""


def check_handler(handler: object, *, in_threads: bool = False) -> None:
    """
    Refuse what can never handle a message. Otherwise each message would fail, and become a dead letter.

    :param in_threads: the handler is called in a thread, so it is not a coroutine function.
    :raises InvalidInput: it cannot be called with two arguments, or is a coroutine function although it must not be.
    """
    if not callable(handler):
        raise InvalidInput(f"a handler is a function of a message and a transaction, not {excerpt(handler)}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # written in C; nothing is known about it
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise InvalidInput(
            f"a handler is called with two arguments, what was received and the transaction, and {_name(handler)} "
            f"does not accept them: {error}"
        ) from None
    if in_threads and inspect.iscoroutinefunction(handler):
        raise InvalidInput(
            f"{_name(handler)} is 'async def', and would not be awaited: with txnframework.blocking, a handler is a "
            "plain 'def'"
        )


def for_one(handler: Callable[[Message[Any], Any], Awaitable[object]]) -> BatchHandler:
    """Return a handler of batches of one message."""
    check_handler(handler)
    return lambda messages, given: _awaitable(handler, handler(messages[0], given))


def for_batches(handler: BatchHandler) -> BatchHandler:
    """Return a handler of batches whose result can be awaited."""
    check_handler(handler)
    return lambda messages, given: _awaitable(handler, handler(messages, given))


def _awaitable(handler: object, result: object) -> Awaitable[object]:
    if inspect.isawaitable(result):
        return result
    raise NotAwaitable(
        f"{_name(handler)} returned {type(result).__name__}, which cannot be awaited: a handler is 'async def'; "
        "txnframework.blocking has plain functions as handlers"
    )


def _name(handler: object) -> str:
    return str(getattr(handler, "__qualname__", type(handler).__qualname__))
