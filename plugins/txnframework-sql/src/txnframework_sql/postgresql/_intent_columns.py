"""Write operations as the columns of a statement that also appends their entries, and the decoding of its results."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from txnframework.errors import VersionMismatch
from txnframework.model import Appended, Applied, Check, Intent, Key, Position, Record, Step, Tail
from txnframework.model.records import WriteOperation, encode
from txnframework_sql.steps.records import encode_indexes
from txnframework_sql.steps.statements import RecordChange, partition_of

_LEDGER, _AFTER = '"ledger":0', '"after":""'
# No record has this version. Other expectations than a version are checked by steps.
_NOT_HERE = -2


class IntentColumns:
    """The intents of one statement; see ``functions/append_to_ledgers.sql``."""

    def __init__(self) -> None:
        self._requests: list[tuple[Check, Intent]] = []
        self._rows: list[list[str | None]] = []
        self._found: Sequence[tuple[int | None, int | None, str | None]] = ()

    def add(self, ledger: int, first: int, step: Step) -> int:
        """Add the intent of a step whose first entry has the number ``first`` in its ledger; return its place."""
        check, intent = step.checks[0], step.intent
        assert intent is not None, "only such a step is added"
        prefix = intent.prefix
        expected = check.expected if isinstance(check.expected, int) else _NOT_HERE
        # A list, because the driver takes a tuple in an array for a row.
        self._rows.append(
            [
                *(str(ledger), str(first), check.key.path, partition_of(check.key), str(expected)),
                *(prefix.path, partition_of(prefix), encode_indexes(frozenset(intent.indexes))),
                *split_document(intent.operation),
            ]
        )
        self._requests.append((check, intent))
        return len(self._requests) - 1

    def rows(self) -> list[list[str | None]]:
        """Return a row of texts for each intent."""
        return self._rows

    def answer(
        self, versions: Sequence[int | None] | None, numbers: Sequence[int | None] | None, afters: Sequence[str] | None
    ) -> None:
        """Take the results of the statement, one for each intent; None: of none."""
        nothing = [None] * len(self._requests)
        self._found = tuple(zip(versions or nothing, numbers or nothing, afters or nothing, strict=True))

    def written(self, place: int, ledger_id: int, appended: tuple[Appended, ...]) -> Applied:
        """Return the result of a step that was made."""
        (_, intent), (_, number, after) = self._requests[place], self._found[place]
        assert number is not None
        assert after is not None
        put = intent.put_at(Tail(Position.parse(after), ledger_id, False))
        key = Key(f"{put.prefix.path}/{number:020d}", partition_of(put.prefix))
        return Applied((Record(key, put.value, number),), (appended,))

    def refusal(self, place: int) -> VersionMismatch | None:
        """Return the error of a step whose header was not as expected; None: the header may be as expected."""
        (check, _), version = self._requests[place], self._found[place][0]
        if version is None or not isinstance(check.expected, int) or version == check.expected:
            return None
        return VersionMismatch(check.key, version)

    def is_header_known(self, place: int) -> bool:
        """Return whether the statement could lock the header, and compare its version."""
        return self._found[place][0] is not None and isinstance(self._requests[place][0].expected, int)

    def change(self, written: Applied, place: int) -> RecordChange:
        """Return the change of the record of a step that was made."""
        key = written.records[0].key
        return RecordChange(key.path, partition_of(key), frozenset(self._requests[place][1].indexes))


def split_document(operation: WriteOperation) -> tuple[str, str, str]:
    """
    Return the JSON of an operation before the ledger, between ledger and position, and after the position.

    In a text within the JSON, quotation marks are escaped. So the names of the two fields occur once.
    """
    head, ledger, rest = encode(replace(operation, ledger=0, after="")).decode().partition(_LEDGER)
    middle, after, tail = rest.partition(_AFTER)
    assert ledger
    assert after
    return head + _LEDGER[:-1], middle + _AFTER[:-1], _AFTER[-1:] + tail
