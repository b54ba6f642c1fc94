"""The values that a plugin returns from its hooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import click
    import msgspec

R = TypeVar("R", covariant=True)
C = TypeVar("C", contravariant=True)


@dataclass(frozen=True, slots=True)
class Provider(Generic[C, R]):
    """
    One implementation of a role.

    ``name`` is its name in the configuration: lower-case letters, digits, ``_``, ``-``, ``.``; for a store the scheme
    of its URLs. ``open`` creates and opens an object from its context. It fails with the errors of the role, and
    releases what it acquired before it raises. ``implementation`` is the class, which is verified against the role when
    the plugin is loaded. ``families`` says which coordinators, buffers and pending-ack stores belong together; stores
    and dispatchers leave it empty. ``options`` is the type of its table of the configuration. ``check_url``, of a
    store, raises InvalidInput for a URL that ``open`` would refuse before it connects. The message is one sentence that
    shows no password, and the check does no I/O.
    """

    name: str
    open: Callable[[C], Awaitable[R]]
    implementation: type[Any]
    families: frozenset[str] = frozenset()
    options: type[msgspec.Struct] | None = None
    check_url: Callable[[str], object] | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """
    One command for ``txnframework <name>``, or ``txnframework <group> <name>``.

    ``load`` imports and returns the click command; it is called when the command is used, not when it is listed. So a
    plugin needs click only where its commands are run. ``group`` is the name of one of the core's own groups, such as
    ``transaction``; empty: no group.
    """

    name: str
    help: str
    load: Callable[[], click.Command]
    group: str = ""

    @property
    def full_name(self) -> str:
        """The words after ``txnframework`` on the command line."""
        return f"{self.group} {self.name}" if self.group else self.name
