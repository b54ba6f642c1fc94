"""What a history shows about each transaction, and how certain that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txnframework_simulation.history import Abort, AskOutcome, Begun, Call, Commit, DrainOutcome, EventKind, Outcome

COMMITTED = "COMMITTED"
ABORTED = "ABORTED"
OPEN = "OPEN"
_DECIDED = {"COMMITTED": COMMITTED, "COMMITTING": COMMITTED, "ABORTED": ABORTED, "ABORTING": ABORTED}
_UNDER_WAY = ("COMMITTING", "ABORTING")

NEVER = 1 << 62
"""Later than every event."""


@dataclass(slots=True)
class TransactionFacts:
    """One transaction: the calls that asked to commit it, and the calls that show its state."""

    txn: str
    begun: Call | None = None
    commits: list[Call] = field(default_factory=list)
    committed: list[Call] = field(default_factory=list)
    aborted: list[Call] = field(default_factory=list)
    told_open: list[Call] = field(default_factory=list)

    @property
    def state(self) -> str | None:
        """COMMITTED or ABORTED; None: no reply shows it, or the replies contradict each other."""
        if bool(self.committed) == bool(self.aborted):
            return None
        return COMMITTED if self.committed else ABORTED

    @property
    def ended_at(self) -> int:
        """The first event whose reply showed that the transaction had ended."""
        return min((call.ended for call in (*self.committed, *self.aborted)), default=NEVER)

    @property
    def over_at(self) -> int:
        """
        The first event whose reply showed that the transaction had ended and was settled everywhere.

        If the end is a decision that participants carry out later, the state shows that they have not completed it.
        """
        calls = (*self.committed, *self.aborted)
        return min((call.ended for call in calls if call.ok and _state(call.reply) not in _UNDER_WAY), default=NEVER)

    @property
    def commit_asked_at(self) -> int:
        """The event of the first request to commit the transaction."""
        return min((call.began for call in self.commits), default=NEVER)

    @property
    def may_be_committed(self) -> bool:
        """Whether a commit was requested, and no reply contradicts it."""
        return self.state == COMMITTED or (self.state is None and any(call.possible for call in self.commits))

    def counts(self, branch: int) -> bool:
        """Whether a branch counts, if the transaction was committed, whichever commit did it."""
        listings = self._listings()
        return branch == 0 or (bool(listings) and all(branch in one for one in listings))

    def may_count(self, branch: int) -> bool:
        """Whether a branch may count, if the transaction was committed."""
        return branch == 0 or any(branch in one for one in self._listings())

    def _listings(self) -> list[tuple[int, ...]]:
        """Return the branches of each commit that may have been the successful one."""
        asked = [call.operation.branches for call in self.commits if call.ok and isinstance(call.operation, Commit)]
        if asked:
            return asked
        return [
            call.operation.branches for call in self.commits if call.possible and isinstance(call.operation, Commit)
        ]


def collect_transactions(calls: Iterable[Call]) -> dict[str, TransactionFacts]:
    """Return all transactions by their ids."""
    found: dict[str, TransactionFacts] = {}

    def of(txn: str) -> TransactionFacts:
        return found.setdefault(txn, TransactionFacts(txn))

    for call in calls:
        match call.operation, call.reply:
            case _, Begun(txn=txn):
                of(txn).begun = call
            case Commit(txn=txn), reply:
                of(txn).commits.append(call)
                _note(of(txn), call, COMMITTED if call.ok else _state(reply))
            case Abort(txn=txn), reply:
                _note(of(txn), call, ABORTED if call.ok else _state(reply))
            case AskOutcome(txn=txn) | DrainOutcome(txn=txn), Outcome(state=state):
                _note(of(txn), call, state)
    return found


def _state(reply: object) -> str | None:
    return reply.state if isinstance(reply, Outcome) else None


def _note(transaction: TransactionFacts, call: Call, state: str | None) -> None:
    if call.kind is EventKind.UNKNOWN or state is None:
        return
    decided = _DECIDED.get(state)
    if decided == COMMITTED:
        transaction.committed.append(call)
    elif decided == ABORTED:
        transaction.aborted.append(call)
    elif state == OPEN:
        transaction.told_open.append(call)
