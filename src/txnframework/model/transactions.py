"""Values of the coordinator role."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import msgspec

from txnframework.errors import InvalidTransactionState
from txnframework.model.ids import TxnID
from txnframework.model.positions import Limit, Position
from txnframework.values import State as State

LISTING_LIMIT = Limit(100)


class Action(Enum):
    """The action that an ``End`` requests."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, order=True)
class Participant:
    """A segment (written to), or one of its subscriptions (acknowledged on)."""

    segment: str
    subscription: str = ""

    def __str__(self) -> str:
        return f"subscription {self.subscription} of {self.segment}" if self.subscription else self.segment


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """The part of one branch of a transaction at one participant, where it wrote or acknowledged."""

    branch: int
    participant: Participant


class Begin(msgspec.Struct, frozen=True, gc=False):
    """
    A request to begin a transaction.

    ``timeout_ms``: counted from now. ``session``: its loss aborts the transaction; None: only the timeout does.
    ``principal``: the only one who may add to the transaction and end it; empty: anyone who knows its id.
    ``co_commit``: only ``IJointCoordinator.end_with`` may commit the transaction.
    """

    timeout_ms: int
    principal: str = ""
    session: str | None = None
    co_commit: bool = False


class End(msgspec.Struct, frozen=True, gc=False):
    """
    A request to end a transaction.

    ``branches``: those that count. The same End again succeeds; another action *or other branches* does not.
    ``unfinished``: operations of these branches may be under way in any process; none may take effect after a commit.
    ``operator``: end the transaction of any owner; used by operators, and by the framework itself when the owner's
    process is gone. ``batch``: the micro-batch whose transaction it is, for observers; it changes nothing else.
    """

    txn_id: TxnID
    action: Action
    principal: str = ""
    branches: frozenset[int] = frozenset({0})
    operator: bool = False
    batch: BatchID | None = None
    unfinished: bool = False


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """
    State of a transaction, as the coordinator returns it; times in ms since 1970 by the environment's clock.

    ``branches``: those that count; None before the commit, because they are not known before, and after an abort. If an
    open transaction has them, a commit with these branches has begun by its id, and nothing can be added any more.
    ``participants`` and ``parts``: the participants, and the branches through which they take part, as far as they were
    requested. ``co_commit``: as in ``Begin``.
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
    co_commit: bool = False

    @property
    def process(self) -> str | None:
        """The process that began the transaction, ``CLIENT@HOST:PID``, alive or not; None: it names none."""
        return None if self.session is None else self.session.rpartition("/")[0] or None

    def counts(self, branch: int) -> bool:
        """Return whether ``branch`` is one of those that the commit listed."""
        return self.state is State.COMMITTED and branch in (self.branches or frozenset())


def session_name(process: str, number: int) -> str:
    """Return the name of a session of a process: ``PROCESS/NUMBER``, where 64 random bits make it unique."""
    return f"{process}/{number:016x}"


def require_same_end(found: Transaction, request: End) -> None:
    """Raise InvalidTransactionState unless ``found`` ended exactly as ``request`` requires; pure."""
    if request.action is Action.ABORT:
        if found.state is not State.ABORTED:
            raise InvalidTransactionState(found.txn_id, found.state, "it cannot be aborted any more")
    elif found.state is not State.COMMITTED:
        raise InvalidTransactionState(found.txn_id, found.state, "it cannot be committed any more")
    elif found.branches != request.branches:
        raise InvalidTransactionState(found.txn_id, found.state, "it was committed with other branches")


@dataclass(frozen=True, slots=True)
class OpenQuery:
    """
    A query for open transactions: oldest deadline first, at least ``age_ms_min`` old, after ``after`` in that order.
    """

    age_ms_min: int = 0
    after: TxnID | None = None
    limit: Limit = LISTING_LIMIT


@dataclass(frozen=True, slots=True)
class Outstanding:
    """
    A transaction that has ended or is not known, and has ``operations`` unsettled operations.

    ``ended``: the transaction, with the participants that have operations left. None: the transaction is not known, so
    its operations never counted and have no effect.
    """

    txn_id: TxnID
    ended: Transaction | None
    operations: int


@dataclass(frozen=True, slots=True)
class SweepResult:
    """
    The result of one bounded sweep: the work that it did, and the remaining work.

    ``next_ms``: when the next sweep has work; None: not before something changes. ``overdue``: the transactions that
    this sweep aborted at their deadlines, as they ended; the host logs them.
    """

    done: int
    left: int
    next_ms: int | None = None
    overdue: tuple[Transaction, ...] = field(default=(), compare=False)


# -- applications: exactly once across restarts, without reuse of ids ----------------------------------


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

    ``follows``: the run that the application had when this run was started; empty: it had none; None: not known.
    """

    application: str
    query: str
    run: str
    version: int
    follows: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A committed batch, and the ranges that it consumed."""

    query: str
    version: int
    ranges: tuple[SourceRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Application:
    """
    State of an application.

    ``run``: the current run; ``past_runs`` are fenced. ``query``, ``version``, ``txn_id``: the batch that was begun
    last. ``committed``: the batches that were committed last, oldest first, bounded.
    """

    application: str
    run: str
    past_runs: tuple[str, ...]
    query: str
    version: int
    txn_id: TxnID | None
    committed: tuple[CommittedBatch, ...]
