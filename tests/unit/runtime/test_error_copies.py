"""One error that several callers get."""

from __future__ import annotations

import pytest

from txnframework.errors import LedgerNotFound, OutcomeUnknown, TxnFrameworkError, UnknownFormat
from txnframework.runtime.call_groups import copy_error


@pytest.mark.parametrize("error", [OutcomeUnknown("x"), LedgerNotFound("orders"), UnknownFormat("the store", 7)])
def test_copy(error: TxnFrameworkError) -> None:
    """The copy has the same text and fields, and a cause of its own."""
    cause = OSError("gone")
    copied = copy_error(error, cause)
    assert copied is not error
    assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
    assert (copied.__cause__, error.__cause__) == (cause, None)
