"""Copies of errors, for several callers of one step."""

from __future__ import annotations

from txnframework.errors import TxnFrameworkError


def copy_error(error: TxnFrameworkError, cause: BaseException | None) -> TxnFrameworkError:
    """Return a copy of an error for one caller: one object raised in several tasks would mix up their tracebacks."""
    # Without ``__init__``: what it takes is not what ``args`` contains.
    own = type(error).__new__(type(error), *error.args)
    own.__dict__.update(error.__dict__)
    own.__cause__ = cause
    return own
