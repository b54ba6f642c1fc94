"""The figures, by the name that ``--only`` takes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from rig import Found, Run

from figures.concurrency import sends_together, transactions_together
from figures.ending import ending_by_participants, ending_over_raw_update
from figures.opening import opening_by_history
from figures.puts import put_over_raw_update
from figures.records import records_per_transaction
from figures.volume import million_messages, sends_in_transactions

FIGURES: dict[str, Callable[[Run], Coroutine[None, None, list[Found]]]] = {
    "end": ending_over_raw_update,
    "participants": ending_by_participants,
    "records": records_per_transaction,
    "opening": opening_by_history,
    "together": transactions_together,
    "million": million_messages,
    "put": put_over_raw_update,
    "sends": sends_together,
    "inside": sends_in_transactions,
}
