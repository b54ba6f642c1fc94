"""The one place where what kazoo and ZooKeeper raise becomes the framework's own errors."""

from __future__ import annotations

from kazoo import exceptions as kazoo_errors

from txnframework.errors import (
    ConfigurationError,
    Corrupt,
    InvalidInput,
    OutcomeUnknown,
    TxnFrameworkError,
    Unavailable,
)
from txnframework_zookeeper.connection._requests import Op

LOST = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.OperationTimeoutError,
    kazoo_errors.RequestTimeoutError,
    kazoo_errors.SessionMovedError,
)
"""After these nobody knows what became of a request."""

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


class MultiFailed(Exception):
    """A multi was refused, and nothing was changed: which of its ops was to blame, and what the server said of it."""

    def __init__(self, index: int, op: Op, cause: Exception) -> None:
        super().__init__(f"op {index} ({type(op).__name__} {op.path}) of a multi failed: {type(cause).__name__}")
        self.index = index
        self.op = op
        self.cause = cause


def to_blame(ops: tuple[Op, ...], errors: list[Exception]) -> MultiFailed | None:
    """Return which op made a multi fail, given the error of each; None: there is none, it was applied."""
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
