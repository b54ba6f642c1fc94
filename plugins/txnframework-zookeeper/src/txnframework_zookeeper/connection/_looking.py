"""Reading a node and being told of its next change, by one request where the node is there."""

from __future__ import annotations

from collections.abc import Callable

from txnframework_zookeeper.connection._errors import NotThere
from txnframework_zookeeper.connection._link import Link
from txnframework_zookeeper.connection._requests import ExistsAndWatch, Get, GetAndWatch, Node, OnPath, Stat

Receive = Callable[[Node | Exception | None], None]


class Look:
    """
    One look at a node, which arms a watch if it is to.

    ZooKeeper arms nothing for a read of a node that is not there, so then its being made is asked for, in a second
    request; if it was made in between, it is read again.
    """

    def __init__(self, link: Link, path: str, receive: Receive, *, arms: bool) -> None:
        self._link = link
        self._path = path
        self._receive = receive
        self._arms = arms

    def begin(self) -> None:
        """Ask."""
        self._ask(GetAndWatch(self._path) if self._arms else Get(self._path))

    def _ask(self, request: OnPath) -> None:
        self._link.hand_over(request, _Reply(lambda found: self._take(request, found)))

    def _take(self, request: OnPath, found: object) -> None:
        if isinstance(found, Stat):
            self.begin()
        elif isinstance(found, NotThere) and isinstance(request, GetAndWatch):
            self._ask(ExistsAndWatch(self._path))
        elif found is None or isinstance(found, NotThere):  # kazoo makes no error of it where it was asked for that
            self._receive(None)
        else:
            assert isinstance(found, Node | Exception)
            self._receive(found)


class _Reply:
    """Takes the answer to one request; kazoo may answer twice."""

    __slots__ = ("_receive",)

    def __init__(self, receive: Callable[[object], None]) -> None:
        self._receive: Callable[[object], None] | None = receive

    def take(self, found: object) -> None:
        """Take the answer, or the error as a value."""
        receive, self._receive = self._receive, None
        if receive is not None:
            receive(found)
