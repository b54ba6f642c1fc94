"""Calls that open something, for ``await`` and for ``async with``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, Protocol, Self, TypeVar


class Closable(Protocol):
    """What can be used in ``async with``."""

    async def __aenter__(self) -> Self:
        """Return the object."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the object."""


OpenedT = TypeVar("OpenedT", bound=Closable)
P = ParamSpec("P")


class OpeningCall(Coroutine[Any, Any, OpenedT]):
    """
    A call that opens a producer, consumer or reader: await it, or use it in ``async with``, which also closes.

    It is a coroutine, so it may be passed wherever one is expected. Nothing happens before it is awaited.
    """

    def __init__(self, opening: Coroutine[Any, Any, OpenedT]) -> None:
        self._opening = opening
        self._opened: OpenedT | None = None

    async def __aenter__(self) -> OpenedT:
        """Open it."""
        self._opened = opened = await self._opening
        return await opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close what was opened."""
        assert self._opened is not None, "it was entered"
        await self._opened.__aexit__(kind, error, trace)

    def __await__(self) -> Generator[Any, Any, OpenedT]:
        """Open it."""
        return self._opening.__await__()

    def send(self, value: Any, *others: object, **named: object) -> Any:
        """Continue the coroutine; also called by a program that has forgotten to open a producer."""
        if value is not None or others or named:
            raise TypeError(self._not_open("send"))
        return self._opening.send(value)

    def throw(self, *raised: Any) -> Any:
        """Raise an exception in the coroutine."""
        return self._opening.throw(*raised)

    def close(self) -> None:
        """Close the coroutine, without opening anything."""
        self._opening.close()

    def _not_open(self, name: str) -> str:
        what = getattr(self._opening, "__name__", "producer")
        return f"the {what} has no {name!r} until it is opened: write 'await' or 'async with' before client.{what}(...)"

    if not TYPE_CHECKING:  # hidden from type checkers, which then report the wrong use

        def __getattr__(self, name: str) -> NoReturn:
            """Explain that the object is not open yet."""
            if name.startswith("__"):  # attributes by which Python inspects an object
                raise AttributeError(name)
            raise AttributeError(self._not_open(name))


def opens(method: Callable[P, Coroutine[Any, Any, OpenedT]]) -> Callable[P, OpeningCall[OpenedT]]:
    """Let the calls of a coroutine method be used in ``async with`` as well."""

    @wraps(method)
    def call(*arguments: P.args, **named: P.kwargs) -> OpeningCall[OpenedT]:
        return OpeningCall(method(*arguments, **named))

    return call
