"""What is asked of a server, as calls of kazoo's client; and what becomes of the errors that it answers with."""

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
"""What ZooKeeper knows of a node."""


class Node(NamedTuple):
    """A node as read."""

    data: bytes
    stat: Stat


# Some of these are made for every step of every transaction: a struct takes a third of a dataclass's time,
# and none of the garbage collector's.
class CreateNode(msgspec.Struct, frozen=True, gc=False):
    """Make a node that is not there, below a parent that is."""

    path: str
    data: bytes = b""
    is_ephemeral: bool = False


class SetNode(msgspec.Struct, frozen=True, gc=False):
    """Write a node's data, if its version is this."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteNode(msgspec.Struct, frozen=True, gc=False):
    """Remove a node that has no children, if its version is this."""

    path: str
    version: int = ANY_VERSION


class CheckNode(msgspec.Struct, frozen=True, gc=False):
    """Require a node to be there, in this version."""

    path: str
    version: int = ANY_VERSION


Op = CreateNode | SetNode | DeleteNode | CheckNode

Watcher = Callable[[Any], None]
"""Called, in the event loop, with an event of kazoo's."""


@dataclass(frozen=True, slots=True)
class OnPath:
    """A request about one node; with ``watcher``, which is then told of the node's next change, once."""

    path: str
    watcher: Watcher | None = None

    def send(self, client: Any) -> Any:
        """Make the call; return kazoo's result, which is on its way."""
        raise NotImplementedError


class Get(OnPath):
    """Read a node, as data and Stat. Of a node that is not there nothing is told."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.get_async(self.path, self.watcher)


class Exists(OnPath):
    """Read the Stat of a node, None if it is not there; its creation is told, too."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.exists_async(self.path, self.watcher)


class Children(OnPath):
    """List the names below a node; what is told is that a child was made or removed, or the node itself removed."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.get_children_async(self.path, self.watcher)


class Sync(OnPath):
    """Let the server catch up with its leader before it answers what is asked next."""

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.sync_async(self.path)


@dataclass(frozen=True, slots=True)
class Create:
    """Make one node without data."""

    path: str
    acl: list[Any]

    def send(self, client: Any) -> Any:
        """Make the call."""
        return client.create_async(self.path, b"", self.acl)


@dataclass(frozen=True, slots=True)
class Multi:
    """Several ops, all or nothing; answered with a result, or an error, for each of them."""

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
"""After these nobody knows what became of a request."""

NO_CONNECTION = (*LOST, kazoo_errors.ConnectionClosedError, kazoo_errors.AuthFailedError)
"""After these the connection has ended, or is about to."""

NotThere = kazoo_errors.NoNodeError
"""A node, or the parent of one to be made, is not there."""
AlreadyThere = kazoo_errors.NodeExistsError
"""A node to be made is there."""
OtherVersion = kazoo_errors.BadVersionError
"""A node has another version than an op named."""
NotEmpty = kazoo_errors.NotEmptyError
"""A node to be removed has children."""
MayNot = kazoo_errors.NoAuthError
"""The login has no right to it, by the access control list of a node that is there."""

EXPECTED = (NotThere, AlreadyThere, OtherVersion, NotEmpty)
"""What an op of a multi may find."""

_NOT_TO_BLAME = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)


class NotSent(kazoo_errors.ConnectionLoss):  # type: ignore[misc]
    """There was no connection when a request was to be sent: it did nothing."""


class WatchLost(Exception):
    """The connection was lost before a watch was known to be there; there is none."""


class MultiFailed(Exception):
    """A multi was refused, and nothing was changed: which of its ops was to blame, and what the server said of it."""

    def __init__(self, index: int, op: Op, cause: Exception) -> None:
        super().__init__(f"op {index} ({type(op).__name__} {op.path}) of a multi failed: {type(cause).__name__}")
        self.index = index
        self.op = op
        self.cause = cause


def to_blame(ops: tuple[Op, ...], results: list[object]) -> MultiFailed | None:
    """Return which op made a multi fail, given the result of each; None: none did, it was applied."""
    errors = [result for result in results if isinstance(result, Exception)]
    if not errors:
        return None
    index = next((at for at, error in enumerate(errors) if not isinstance(error, _NOT_TO_BLAME)), 0)
    return MultiFailed(index, ops[index], errors[index])


def translated(error: BaseException, shown_url: str, what: str) -> TxnFrameworkError:
    """Return what to raise, ``from error``, for a request that the server refused or that never reached it."""
    if isinstance(error, TxnFrameworkError):
        return error
    if isinstance(error, kazoo_errors.AuthFailedError):
        return refused(shown_url)
    if isinstance(error, MayNot):
        return InvalidInput(
            f"{shown_url} does not let this login {what}; correct the user or the password, or change its access"
            " control list"
        )
    if isinstance(error, kazoo_errors.InvalidACLError):
        return InvalidInput(f"{shown_url} does not take the access control list: nobody is logged in")
    if isinstance(error, kazoo_errors.SessionClosedRequireSaslError):
        return ConfigurationError("metadata.url", f"{shown_url} wants a login by SASL; name one in the options")
    if isinstance(error, kazoo_errors.QuotaExceededError):
        return Unavailable(f"{shown_url} has reached its quota")
    if isinstance(error, kazoo_errors.UnimplementedError):
        return InvalidInput(f"{shown_url} is older than ZooKeeper 3.6; upgrade it")
    if isinstance(error, kazoo_errors.MarshallingError | kazoo_errors.DataInconsistency):
        return Corrupt(f"{shown_url} and this client do not understand each other: {_reason(error)}")
    return Unavailable(f"{shown_url} could not {what}: {_reason(error)}")


def refused(shown_url: str) -> TxnFrameworkError:
    """Return what to raise when a login was refused."""
    return ConfigurationError(
        "metadata.url", f"{shown_url} refused the login; check the user, the password and metadata.options.login"
    )


def lost(error: BaseException, shown_url: str) -> OutcomeUnknown:
    """Return what to raise, ``from error``, for a write whose reply was lost."""
    return OutcomeUnknown(f"{shown_url} did not confirm a write: {_reason(error)}")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
