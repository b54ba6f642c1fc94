"""Proxies for objects of another process, which provide the same interfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Protocol

from zope.interface import classImplements
from zope.interface.interface import Method

from txnframework.interfaces import IWatch
from txnframework.testing._remote.frames import Reference


class Caller(Protocol):
    """Makes calls in the other process."""

    def begin(self, number: int, method: str, arguments: tuple[Any, ...]) -> asyncio.Future[Any]:
        """
        Start a call of object ``number`` there; cancelling the future cancels the call.

        The result of the future is a pair: the value that the call returned, and the object's attributes at that time.
        """


class RemoteProxy:
    """Proxy for one object; a subclass is made for each class and its interfaces."""

    def __init__(self, caller: Caller, reference: Reference) -> None:
        vars(self).update(reference.facts)
        self._caller = caller
        self._number = reference.number
        self._wait: asyncio.Future[Any] | None = None


def proxy_of(caller: Caller, reference: Reference) -> RemoteProxy:
    """Return a proxy for an object of another process."""
    made: RemoteProxy = _proxy_class(reference.kind, reference.interfaces)(caller, reference)
    return made


@cache
def _proxy_class(kind: type, interfaces: tuple[Any, ...]) -> type[RemoteProxy]:
    methods: dict[str, Any] = {}
    for interface in interfaces:
        for name, description in interface.namesAndDescriptions(all=True):
            if isinstance(description, Method):
                waits = interface.extends(IWatch, strict=False) and name == "changed"
                methods[name] = (_waiting if waits else _forwarding)(getattr(kind, name))
    made = type(f"{kind.__name__}Elsewhere", (RemoteProxy,), methods)
    classImplements(made, *interfaces)  # type: ignore[misc]  # the plugin for mypy wants a class statement
    return made


def _forwarding(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def forward(self: RemoteProxy, *arguments: Any) -> Any:
        value, facts = await self._caller.begin(self._number, method.__name__, arguments)
        vars(self).update(facts)
        return value

    return forward


def _waiting(method: Callable[..., Any]) -> Callable[..., Any]:
    """
    Return a ``changed`` that keeps one call in flight in the other process, however often it is cancelled here.

    So a wake-up that was in flight when the wait was cancelled is kept for the next wait.
    """

    @wraps(method)
    async def wait(self: RemoteProxy) -> Any:
        waiting = self._wait
        if waiting is None:
            waiting = self._wait = self._caller.begin(self._number, method.__name__, ())
        is_taken = True
        try:
            value, facts = await asyncio.shield(waiting)
            vars(self).update(facts)  # what the watch reports about the change
            return value
        except asyncio.CancelledError:
            is_taken = False
            raise
        finally:
            if is_taken and self._wait is waiting:
                self._wait = None

    return wait
