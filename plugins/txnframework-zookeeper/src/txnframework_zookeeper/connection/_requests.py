"""Requests to a server, as calls of kazoo's client, and the translation of their errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec
from kazoo import exceptions as kazoo_errors
from kazoo.protocol.states import ZnodeStat

from txnframework.errors import (
    ConfigurationError,
    Corrupt,
    InvalidInput,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
)

ANY_VERSION = -1

Stat: TypeAlias = ZnodeStat
"""ZooKeeper's metadata of a node."""


class Node(NamedTuple):
    """A node's data and metadata."""

    data: bytes
    stat: Stat


# Some of these are created in every step of every transaction. A struct takes a third of a dataclass's time, and is
# exempt from garbage collection.
class CreateNode(msgspec.Struct, frozen=True, gc=False):
    """Create a node; it must not exist, and its parent must."""

    path: str
    data: bytes = b""
    is_ephemeral: bool = False


class SetNode(msgspec.Struct, frozen=True, gc=False):
    """Write a node's data if the node has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteNode(msgspec.Struct, frozen=True, gc=False):
    """Delete a node without children if it has this version."""

    path: str
    version: int = ANY_VERSION


class CheckNode(msgspec.Struct, frozen=True, gc=False):
    """Require that a node exists in this version."""

    path: str
    version: int = ANY_VERSION


Op = CreateNode | SetNode | DeleteNode | CheckNode

Watcher = Callable[[Any], None]
"""Called, in the event loop, with an event of kazoo."""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A request about one node; a ``watcher`` is called once, with the node's next change."""

    path: str
    watcher: Watcher | None = None

    def send(self, client: Any) -> Any:
        """Make the call; return kazoo's pending result."""
        raise NotImplementedError


class Get(NodeRequest):
    """Read a node, as data and Stat. A missing node is not watched."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.get_async(self.path, self.watcher)


class Exists(NodeRequest):
    """Read the Stat of a node, None if it does not exist; its creation is watched as well."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.exists_async(self.path, self.watcher)


class Children(NodeRequest):
    """List the names below a node; watched are the creation and deletion of children, and the deletion of the node."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.get_children_async(self.path, self.watcher)


class Sync(NodeRequest):
    """Let the server catch up with its leader before it answers the next request."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.sync_async(self.path)


@dataclass(frozen=True, slots=True)
class Create:
    """Create one node without data."""

    path: str
    acl: list[Any]

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.create_async(self.path, b"", self.acl)


@dataclass(frozen=True, slots=True)
class Multi:
    """Several ops, all or nothing; the reply has a result, or an error, for each of them."""

    ops: Sequence[Op]
    root: str
    acl: list[Any]

    def send(self, client: Any) -> Any:
        """Make the call."""
        asked = client.transaction()
        for op in self.ops:
            path = self.root + op.path
            match op:
                case CreateNode():
                    asked.create(path, op.data, self.acl, op.is_ephemeral)
                case SetNode():
                    asked.set_data(path, op.data, op.version)
                case DeleteNode():
                    asked.delete(path, op.version)
                case CheckNode():
                    asked.check(path, op.version)
        return asked.commit_async()


LOST = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.SessionMovedError,
)
"""After these errors the outcome of a request is unknown."""

NO_CONNECTION = (*LOST, kazoo_errors.ConnectionClosedError, kazoo_errors.AuthFailedError)
"""After these errors the connection has ended, or is about to."""

NoNode = kazoo_errors.NoNodeError
"""A node, or the parent of a node to create, does not exist."""
NodeExists = kazoo_errors.NodeExistsError
"""A node to create exists already."""
BadVersion = kazoo_errors.BadVersionError
"""A node has another version than the op requires."""
NotEmpty = kazoo_errors.NotEmptyError
"""A node to delete has children."""
NoPermission = kazoo_errors.NoAuthError
"""The login has no permission, by the access control list of an existing node."""

EXPECTED = (NoNode, NodeExists, BadVersion, NotEmpty)
"""The errors that an op of a multi may cause."""

_CONSEQUENTIAL = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


class NotSent(kazoo_errors.ConnectionLoss):  # type: ignore[misc]
    """There was no connection for a request: it had no effect."""


class WatchLost(Exception):
    """The connection was lost before a watch was confirmed; there is no watch."""


class MultiFailed(Exception):
    """A multi was refused, and nothing was changed: the op that failed, and the server's error."""

    def __init__(self, index: int, op: Op, cause: Exception) -> None:
        super().__init__(f"op {index} ({type(op).__name__} {op.path}) of a multi failed: {type(cause).__name__}")
        self.index = index
        self.op = op
        self.cause = cause


def failed_op(ops: tuple[Op, ...], results: list[object]) -> MultiFailed | None:
    """Return the op that made a multi fail, given the result of each; None: the multi was applied."""
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    index = next((at for at, error in enumerate(errors) if not isinstance(error, _CONSEQUENTIAL)), 0)
    return MultiFailed(index, ops[index], errors[index])


def translate_error(error: BaseException, shown_url: str, what: str) -> TxnFrameworkError:
    """Return the error to raise, ``from error``, for a request that was refused or never sent."""
    if isinstance(error, TxnFrameworkError):
        return error
    if isinstance(error, kazoo_errors.AuthFailedError):
        return login_refused(shown_url)
    if isinstance(error, NoPermission):
        return InvalidInput(
            f"{shown_url} does not let this login {what}; correct the user or the password, or change its access"
            " control list"
        )
    if isinstance(error, kazoo_errors.InvalidACLError):
        return InvalidInput(
            f"{shown_url} refuses the access control list because there is no login; log in, or set is_private to false"
        )
    if isinstance(error, kazoo_errors.SessionClosedRequireSaslError):
        return ConfigurationError("metadata.url", f"{shown_url} requires a login by SASL; set metadata.options.login")
    if isinstance(error, kazoo_errors.QuotaExceededError):
        return Unavailable(f"{shown_url} has reached its quota")
    if isinstance(error, kazoo_errors.UnimplementedError):
        return InvalidInput(f"{shown_url} is older than ZooKeeper 3.6; upgrade it")
    if isinstance(error, kazoo_errors.MarshallingError | kazoo_errors.DataInconsistency):
        return Corrupt(f"{shown_url} and this client are incompatible: {_reason(error)}")
    return Unavailable(f"{shown_url} could not {what}: {_reason(error)}")


def login_refused(shown_url: str) -> TxnFrameworkError:
    """Return the error to raise when a login was refused."""
    return ConfigurationError(
        "metadata.url", f"{shown_url} refused the login; check the user, the password and metadata.options.login"
    )


def reply_lost(error: BaseException, shown_url: str) -> OutcomeUnknown:
    """Return the error to raise, ``from error``, for a write whose reply was lost."""
    return OutcomeUnknown(f"{shown_url} did not confirm a write: {_reason(error)}")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
