"""What an application passes as a handler: refused where it cannot be one, before that costs messages deliveries."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from txnframework.client._messages import Message
from txnframework.client._planned import PlannedOperation, PlannedSend
from txnframework.errors import InvalidInput, excerpt

Outgoing = PlannedSend | Iterable[PlannedSend] | None
"""What a handler of messages alone returns: what is to be sent."""

_TO_RETURN = "a handler returns what is to be sent: None, producer.outgoing(...), or several of these"


class HandlerMisuse(Exception):
    """The function can be no handler, as its result shows; the message says why. The messages are not at fault."""


@dataclass(frozen=True, slots=True)
class HandlerFunction:
    """
    A handler of an application.

    * ``takes_several``: it is called with a tuple of messages, not with one message.
    * ``takes_transaction``: it is called with the transaction, too, and sends in it. Otherwise it returns what is to be
      sent.
    """

    function: Callable[..., Any]
    takes_several: bool
    takes_transaction: bool

    def __str__(self) -> str:
        return _name(self.function)

    def call(self, messages: tuple[Message[Any], ...], *transaction: object) -> Awaitable[object]:
        """
        Call the handler with messages and, if it takes one, the transaction.

        :raises HandlerMisuse: its result cannot be awaited.
        """
        result: object = self.function(messages if self.takes_several else messages[0], *transaction)
        if inspect.isawaitable(result):
            return result
        raise HandlerMisuse(
            f"{self} returned {type(result).__name__}, which cannot be awaited: a handler is 'async def' without "
            "'yield'; txnframework.blocking has plain functions as handlers"
        )

    def sends_of(self, result: object) -> tuple[PlannedSend, ...]:
        """
        Return what the handler returned to be sent.

        :raises HandlerMisuse: it is something else.
        """
        if result is None:
            return ()
        if isinstance(result, PlannedSend):
            return (result,)
        if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping):
            raise HandlerMisuse(f"{self} returned {type(result).__name__}: {_TO_RETURN}")
        sends = tuple(result)
        for one in sends:
            if not isinstance(one, PlannedSend):
                raise HandlerMisuse(f"{self} returned {type(one).__name__} in {type(result).__name__}: {_TO_RETURN}")
        return sends

    def refuse_sends(self, result: object) -> None:
        """
        Refuse what would not be sent: only the result of a handler without the transaction is used.

        :raises HandlerMisuse: the handler returned messages to be sent.
        """
        several = result if isinstance(result, list | tuple) else (result,)
        if any(isinstance(one, PlannedOperation) for one in several):
            raise HandlerMisuse(
                f"{self} returned what is to be sent, and it is not used here: a handler with a second argument sends "
                "with txn=txn; without transactions, it sends before it returns"
            )


def handler_function(handler: object, *, takes_several: bool, in_threads: bool = False) -> HandlerFunction:
    """
    Refuse what can never handle a message. Otherwise each message would fail, and become a dead letter.

    :param in_threads: the handler is called in a thread, so it is not a coroutine function.
    :raises InvalidInput: it can be called neither with one nor with two arguments, or is a coroutine function although
        it must not be.
    """
    if not callable(handler):
        raise InvalidInput(
            f"a handler is a function of a message, or of a message and a transaction, not {excerpt(handler)}"
        )
    function = HandlerFunction(handler, takes_several, _takes_transaction(handler))
    if in_threads and inspect.iscoroutinefunction(handler):
        raise InvalidInput(
            f"{function} is 'async def', and would not be awaited: with txnframework.blocking, a handler is a "
            "plain 'def'"
        )
    return function


def _takes_transaction(handler: Callable[..., Any]) -> bool:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return True  # written in C; nothing is known about it
    for arguments in (2, 1):
        try:
            signature.bind(*[None] * arguments)
        except TypeError as error:
            refused = error
        else:
            return arguments == 2
    raise InvalidInput(
        "a handler is called with what was received, or with this and the transaction, and "
        f"{_name(handler)} accepts neither: {refused}"
    )


def _name(handler: object) -> str:
    return str(getattr(handler, "__qualname__", type(handler).__qualname__))
