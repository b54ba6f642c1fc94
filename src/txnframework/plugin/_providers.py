"""Roles, and the values that plugins return from their hooks: providers, commands and embedded servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from txnframework.interfaces import (
    IDispatcher,
    ILedgerStore,
    IMetadataStore,
    IObserver,
    IPendingAckStore,
    ITransactionBuffer,
    ITransactionCoordinator,
)

if TYPE_CHECKING:
    import click
    import msgspec

R = TypeVar("R", covariant=True)
C = TypeVar("C", contravariant=True)


class Role(StrEnum):
    """A role; its value is its name in errors and listings."""

    METADATA_STORE = "metadata store"
    LEDGER_STORE = "ledger store"
    COORDINATOR = "coordinator"
    BUFFER = "transaction buffer"
    PENDING_ACK_STORE = "pending-ack store"
    DISPATCHER = "dispatcher"
    OBSERVER = "observer"


HOOKS: dict[Role, str] = {
    Role.METADATA_STORE: "txnframework_metadata_stores",
    Role.LEDGER_STORE: "txnframework_ledger_stores",
    Role.COORDINATOR: "txnframework_coordinators",
    Role.BUFFER: "txnframework_buffers",
    Role.PENDING_ACK_STORE: "txnframework_pending_ack_stores",
    Role.DISPATCHER: "txnframework_dispatchers",
    Role.OBSERVER: "txnframework_observers",
}
COMMANDS_HOOK = "txnframework_commands"
SERVERS_HOOK = "txnframework_servers"

INTERFACES: dict[Role, Any] = {
    Role.METADATA_STORE: IMetadataStore,
    Role.LEDGER_STORE: ILedgerStore,
    Role.COORDINATOR: ITransactionCoordinator,
    Role.BUFFER: ITransactionBuffer,
    Role.PENDING_ACK_STORE: IPendingAckStore,
    Role.DISPATCHER: IDispatcher,
    Role.OBSERVER: IObserver,
}


@dataclass(frozen=True, slots=True)
class Provider(Generic[C, R]):
    """
    One implementation of a role.

    ``name`` is its name in the configuration: lower-case letters, digits, ``_``, ``-``, ``.``; for a store the scheme
    of its URLs. ``open`` creates and opens an object from its context. It fails with the errors of the role, and
    releases what it acquired before it raises. ``implementation`` is the class, which is verified against the role when
    the plugin is loaded. ``families`` says which coordinators, buffers and pending-ack stores belong together; others
    leave it empty. ``options`` is the type of its table of the configuration. ``check_url``, of a store, raises
    InvalidInput for a URL that ``open`` would refuse before it connects. The message is one sentence that shows no
    password, and the check does no I/O. ``is_lasting``, of a store: whether another process finds what was stored; the
    commands that copy deployments refuse a store that is not.
    """

    name: str
    open: Callable[[C], Awaitable[R]]
    implementation: type[Any]
    families: frozenset[str] = frozenset()
    options: type[msgspec.Struct] | None = None
    check_url: Callable[[str], object] | None = None
    is_lasting: bool = True


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


SERVER_ROLE = "embedded server"
"""The name of the role in errors and listings."""


@dataclass(frozen=True, slots=True)
class ServerMember:
    """
    One server of a cluster, which can fail while the others continue.

    ``failures`` are the ways in which it fails, by names such as ``kill`` and ``cut``. ``recover`` ends any of them,
    and returns when the member is current again. All block, and raise OSError or RuntimeError.
    """

    name: str
    failures: Mapping[str, Callable[[], None]]
    recover: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Server:
    """
    A server that was started: ``url`` is the URL of an empty store in it.

    ``kill`` ends it immediately, in any state; ``start`` starts it again on its existing data. Both block, and raise
    OSError or RuntimeError. ``members``: the servers of a cluster; ``kill`` and ``start`` concern all of them.
    """

    url: str
    kill: Callable[[], None]
    start: Callable[[], None]
    members: tuple[ServerMember, ...] = ()


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """
    A server that can be started; users write ``embedded-`` and its name in place of a store's URL.

    ``launch`` starts one, which is removed with its data at the end of the block. If it cannot start, it raises OSError
    or RuntimeError with what to install.
    """

    name: str
    launch: Callable[[], AbstractContextManager[Server]]
