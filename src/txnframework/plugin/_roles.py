"""The roles in the registry: the hook that finds each role, and the interface that specifies it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from txnframework.interfaces import (
    IDispatcher,
    ILedgerStore,
    IMetadataStore,
    IPendingAckStore,
    ITransactionBuffer,
    ITransactionCoordinator,
)


class Role(StrEnum):
    """A role; its value is its name in errors and listings."""

    METADATA_STORE = "metadata store"
    LEDGER_STORE = "ledger store"
    COORDINATOR = "coordinator"
    BUFFER = "transaction buffer"
    PENDING_ACK_STORE = "pending-ack store"
    DISPATCHER = "dispatcher"


HOOKS: dict[Role, str] = {
    Role.METADATA_STORE: "txnframework_metadata_stores",
    Role.LEDGER_STORE: "txnframework_ledger_stores",
    Role.COORDINATOR: "txnframework_coordinators",
    Role.BUFFER: "txnframework_buffers",
    Role.PENDING_ACK_STORE: "txnframework_pending_ack_stores",
    Role.DISPATCHER: "txnframework_dispatchers",
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
}
