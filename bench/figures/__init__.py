"""The figures of each backend, by the name that ``--only`` takes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from measurement import Found, Run

from figures.appends import appends_over_copy
from figures.batching import batched_over_plain
from figures.clients import clients_over_raw_transactions
from figures.co_commits import co_commits_over_plain
from figures.commits import ending_by_participants, ending_over_raw_update
from figures.concurrency import sends_together, transactions_together
from figures.log_recovery import recovery_by_history
from figures.multis import clients_over_raw_multis
from figures.puts import put_over_raw_update
from figures.records import records_per_transaction
from figures.segment_start import opening_beside_open, opening_by_history
from figures.visibility import visible_elsewhere
from figures.volume import million_messages, sends_in_transactions

Figure = Callable[[Run], Coroutine[None, None, list[Found]]]

OF_EVERY_BACKEND: dict[str, Figure] = {
    "end": ending_over_raw_update,
    "participants": ending_by_participants,
    "records": records_per_transaction,
    "put": put_over_raw_update,
    "together": transactions_together,
}
OF_SQL: dict[str, Figure] = {
    "opening": opening_by_history,
    "sends": sends_together,
    "inside": sends_in_transactions,
    "co-commit": co_commits_over_plain,
}
FIGURES: dict[str, dict[str, Figure]] = {
    "sqlite": {
        **OF_EVERY_BACKEND,
        **OF_SQL,
        "million": million_messages,
        "batching": batched_over_plain,
        "log-recovery": recovery_by_history,
    },
    "postgresql": {
        **OF_EVERY_BACKEND,
        **OF_SQL,
        "clients": clients_over_raw_transactions,
        "append": appends_over_copy,
        "visible": visible_elsewhere,
    },
    "zookeeper": {
        "end": ending_over_raw_update,
        "clients": clients_over_raw_multis,
        "visible": visible_elsewhere,
        "opening": opening_beside_open,
    },
}
