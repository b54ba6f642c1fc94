"""How much of a segment is kept; pure."""

from __future__ import annotations

from dataclasses import dataclass

from txnframework.config import RetentionSection
from txnframework.model.cursor import Cursor
from txnframework.model.ledger import LedgerSummary
from txnframework.model.positions import Position


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What is known of a segment.

    ``ledgers``: the first ones that are left. ``readable``: everything up to it is decided. ``acknowledged``: every
    subscription is done with everything up to it; None: there is no subscription. ``replayed``: a pipeline that starts
    again may read anew what stands behind it; None: there is none. ``compacted``: readers of what was compacted go on
    behind it; None: nothing was.
    """

    now_ms: int
    ledgers: tuple[LedgerSummary, ...]
    readable: Position
    acknowledged: Position | None = None
    replayed: Position | None = None
    compacted: Position | None = None


def keeps_everything(rule: RetentionSection) -> bool:
    """Whether nothing is ever trimmed."""
    return rule.time_ms < 0 and rule.bytes < 0 and rule.backlog_time_ms < 0


def counts_time(rule: RetentionSection) -> bool:
    """Whether ledgers go by their age, so that an open one has to be closed some day."""
    return rule.time_ms >= 0 or rule.backlog_time_ms >= 0


def first_to_keep(facts: Facts, rule: RetentionSection) -> int:
    """
    Return the first ledger that stays; those below go.

    A ledger goes when every subscription is done with all of it, no pipeline may replay it, and one of the limits says
    so: it is older than ``time_ms``, or what remains of acknowledged ledgers holds ``bytes`` without it. Only
    ``backlog_time_ms`` passes cursors and what is kept for replays, and nothing passes what is undecided. The last
    ledger stays: it is the open one, or others that were not looked at stand behind it.
    """
    bounds = (facts.readable, facts.acknowledged, facts.replayed, facts.compacted)
    done = min(bound for bound in bounds if bound is not None)
    kept_bytes = sum(ledger.bytes for ledger in facts.ledgers if ledger.last <= done)
    *closed, last = facts.ledgers
    for ledger in closed:
        age_ms = max(0, facts.now_ms - ledger.appended_ms)
        is_done = ledger.last <= done
        expired = 0 <= rule.time_ms <= age_ms
        exceeds = 0 <= rule.bytes <= kept_bytes - ledger.bytes
        given_up = 0 <= rule.backlog_time_ms <= age_ms
        if ledger.last > facts.readable or not (given_up or (is_done and (expired or exceeds))):
            return ledger.ledger_id
        if is_done:
            kept_bytes -= ledger.bytes
    return last.ledger_id


def done_through(cursor: Cursor, ledgers: tuple[LedgerSummary, ...]) -> Position:
    """
    Return up to where everything is acknowledged, of the ledgers that are left.

    That may be beyond the mark: from their positions alone nobody can tell that the last entry of one ledger and the
    first one of the next are neighbours.
    """
    mark = cursor.mark_delete
    for first, last in cursor.deleted:
        following = _entry_after(mark, ledgers)
        if following is None or following < first:
            return mark
        mark = last
    return mark


def _entry_after(position: Position, ledgers: tuple[LedgerSummary, ...]) -> Position | None:
    for ledger in ledgers:
        entry_id = position.entry_id + 1 if ledger.ledger_id == position.ledger_id else 0
        if ledger.ledger_id >= position.ledger_id and entry_id < ledger.entries:
            return Position(ledger.ledger_id, entry_id)
    return None
