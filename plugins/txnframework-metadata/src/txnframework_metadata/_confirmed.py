"""Which acknowledgment records this process has confirmed to its callers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from txnframework.model.records import AckOperation
from txnframework_metadata._views import StoredOperation


class ConfirmedAcks:
    """
    A bounded memory of records that passed their look at the others.

    A record tells nobody whether it did: its call may have been cancelled, or have failed without being able to
    withdraw it. One that is forgotten here only costs a repeated acknowledgment another look.
    """

    def __init__(self, records_max: int, *, admitted_is_confirmed: bool) -> None:
        self._records_max = records_max
        # On a store without atomic batches a record is admitted after the look, so it tells by itself.
        self._admitted_is_confirmed = admitted_is_confirmed
        self._paths: OrderedDict[str, None] = OrderedDict()

    def holds(self, operation: StoredOperation) -> bool:
        """Whether the record is known to have been confirmed."""
        if self._admitted_is_confirmed:
            return isinstance(operation.document, AckOperation) and operation.document.admitted
        return operation.record.key.path in self._paths

    def note(self, operations: Iterable[StoredOperation]) -> None:
        """Remember records that are confirmed now, and forget the oldest ones beyond the bound."""
        for operation in operations:
            self._paths[operation.record.key.path] = None
        while len(self._paths) > self._records_max:
            self._paths.popitem(last=False)

    def forget(self, operations: Iterable[StoredOperation]) -> None:
        """The transaction has ended: nobody repeats these."""
        for operation in operations:
            self._paths.pop(operation.record.key.path, None)
