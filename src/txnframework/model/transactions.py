"""Values that cross the coordinator role."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txnframework.errors import InvalidTransactionState
from txnframework.model.ids import TxnID
from txnframework.model.positions import Limit, Position
from txnframework.values.states import State as State

LISTING_LIMIT = Limit(100)


class Action(Enum):
    """What ``end`` asks for."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """A segment (written to), or a subscription of it (acknowledged on)."""

    segment: str
    subscription: str = ""

    def __str__(self) -> str:
        return f"subscription {self.subscription} of {self.segment}" if self.subscription else self.segment


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What one branch of a transaction has done at one participant: written there, or acknowledged there."""

    branch: int
    participant: Participant


@dataclass(frozen=True, slots=True)
class Begin:
    """
    ``timeout_ms`` from now; ``session``: whose loss aborts it (None: only time does).

    ``principal``: who alone may add to it and end it; empty: whoever knows its id.
    """

    timeout_ms: int
    principal: str = ""
    session: str | None = None


@dataclass(frozen=True, slots=True)
class End:
    """
    ``branches``: those that count. The same End again succeeds; another action *or other branches* does not.

    ``operator``: whoever owns it, it is ended; for an operator, and for the framework itself when its process is gone.
    """

    txn_id: TxnID
    action: Action
    principal: str = ""
    branches: frozenset[int] = frozenset({0})
    operator: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """
    What the coordinator knows; times in ms since 1970 by the environment's clock.

    ``branches``: those that count; None before it is committed, since nobody knows them sooner, and where it was
    aborted. ``participants`` and ``parts``: who takes part, and through which branches, as far as that was asked for.
    """

    txn_id: TxnID
    state: State
    deadline_ms: int
    created_ms: int
    finalized_ms: int | None = None
    principal: str = ""
    session: str | None = None
    branches: frozenset[int] | None = None
    participants: frozenset[Participant] = frozenset()
    parts: frozenset[Part] = frozenset()

    def counts(self, branch: int) -> bool:
        """Whether ``branch`` is one of those that the commit listed."""
        return self.state is State.COMMITTED and branch in (self.branches or frozenset())


def require_same_end(found: Transaction, request: End) -> None:
    """Raise InvalidTransactionState unless ``found`` ended exactly as ``request`` asks; pure."""
    if request.action is Action.ABORT:
        if found.state is not State.ABORTED:
            raise InvalidTransactionState(found.txn_id, found.state, "it cannot be aborted any more")
    elif found.state is not State.COMMITTED:
        raise InvalidTransactionState(found.txn_id, found.state, "it cannot be committed any more")
    elif found.branches != request.branches:
        raise InvalidTransactionState(found.txn_id, found.state, "it was committed with other branches")


@dataclass(frozen=True, slots=True)
class OpenQuery:
    """Open transactions, oldest deadline first, at least ``age_ms_min`` old, after ``after`` in that order."""

    age_ms_min: int = 0
    after: TxnID | None = None
    limit: Limit = LISTING_LIMIT


@dataclass(frozen=True, slots=True)
class Outstanding:
    """
    A transaction that has ended, or is not known, and has so many operations left that nobody has settled.

    ``ended``: the transaction, with the participants where they are left; None: it is not known, so they never counted
    and have no effect.
    """

    txn_id: TxnID
    ended: Transaction | None
    operations: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What one bounded sweep did, what is left, and when the next one has work (None: not before something changes)."""

    done: int
    left: int
    next_ms: int | None = None


# -- applications: exactly once across restarts, without an id that is used again ----------------------


@dataclass(frozen=True, slots=True)
class SourceRange:
    """What one batch consumed of one subscription, by segment: after ``start``, up to and including ``end``."""

    topic: str
    subscription: str
    start: dict[str, Position]
    end: dict[str, Position]


@dataclass(frozen=True, slots=True)
class BatchID:
    """
    One batch of one run of an application; ``version`` grows within one ``query`` and means nothing across queries.

    ``follows``: the run that the application had when this one was started, empty where it had none; None: not known.
    """

    application: str
    query: str
    run: str
    version: int
    follows: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch that was committed, and what it consumed."""

    query: str
    version: int
    ranges: tuple[SourceRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Application:
    """
    What is known of an application.

    ``run``: the run that may go on; ``past_runs`` are fenced. ``query``, ``version``, ``txn_id``: the batch begun
    last. ``committed``: the batches committed last, oldest first, bounded.
    """

    application: str
    run: str
    past_runs: tuple[str, ...]
    query: str
    version: int
    txn_id: TxnID | None
    committed: tuple[CommittedBatch, ...]
