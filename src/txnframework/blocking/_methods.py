"""Methods and properties of the asyncio client's objects, for callers without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from txnframework.client import LoopThread

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
A_co = TypeVar("A_co", covariant=True)


class Method(Protocol[P, R_co]):
    """A method with the parameters of the asyncio method, as type checkers see it."""

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Callable[P, R_co]: ...


class Wrapper(Generic[A_co]):
    """
    Base class of what wraps an object of the asyncio client.

    :param asynchronous: the wrapped object; only the loop thread calls it.
    """

    def __init__(self, loop: LoopThread, asynchronous: A_co) -> None:
        self._loop = loop
        self._asynchronous = asynchronous

    def __repr__(self) -> str:
        return f"<blocking {self._asynchronous!r}>"

    @property
    def asynchronous(self) -> A_co:
        """The wrapped object."""
        return self._asynchronous


class ClosedByWith(Wrapper[A_co]):
    """A wrapper that leaving ``with`` closes."""

    def close(self) -> None:
        """Release resources; a subclass says more."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def awaited(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R_co]]) -> Method[P, R_co]:
    """Return a method that waits for the asyncio method of the wrapped object, with its signature and docstring."""

    @wraps(method)
    def wait(self: Wrapper[Any], *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self._loop.run(method(self._asynchronous, *args, **kwargs))

    return cast("Method[P, R_co]", wait)


def called(method: Callable[Concatenate[Any, P], R_co]) -> Method[P, R_co]:
    """Return a method that calls a method of the wrapped object in the loop thread."""

    @wraps(method)
    def call(self: Wrapper[Any], *args: P.args, **kwargs: P.kwargs) -> R_co:
        async def in_loop() -> R_co:
            return method(self._asynchronous, *args, **kwargs)

        return self._loop.run(in_loop())

    return cast("Method[P, R_co]", call)
