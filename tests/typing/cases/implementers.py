"""One good implementer of a role and the bad ones; the marks name what mypy must say of a line."""

from __future__ import annotations

from zope.interface import implementer

from txnframework.interfaces import ICoCommitStore, IDatabaseTransaction, IDispatcher, IMetadataStore, IWatch
from txnframework.model import Assignment, Candidate, ConsumerInfo, Ordering, Position


@implementer(IDispatcher)
class Good:
    subscription_type: str = "exclusive"
    ordering: Ordering = Ordering.SEGMENT
    stands_by: bool = False

    def attach(self, consumer: ConsumerInfo) -> None: ...

    def detach(self, consumer_id: int) -> frozenset[Position]:
        return frozenset()

    def permit(self, consumer_id: int, messages: int) -> None: ...

    def assign(self, waiting: tuple[Candidate, ...]) -> tuple[Assignment, ...]:
        return ()

    def released(self, positions: frozenset[Position]) -> None: ...


good: IDispatcher = Good()


@implementer(IWatch)
class MissingMethod:  # refused: close
    async def changed(self) -> None: ...


@implementer(IWatch)
class SyncInsteadOfAsync:
    def changed(self) -> None: ...  # refused: of supertype "IWatch"

    async def close(self) -> None: ...


@implementer(IWatch)
class MissingParameterType:
    async def changed(self) -> None: ...

    async def close(self, *, quickly: bool) -> None: ...  # refused: of supertype "IWatch"


@implementer(IWatch)
class WrongReturn:
    async def changed(self) -> int:  # refused: of supertype "IWatch"
        return 1

    async def close(self) -> None: ...


class NotDeclared:
    async def changed(self) -> None: ...

    async def close(self) -> None: ...


watch: IWatch = NotDeclared()  # refused: Incompatible types in assignment


async def narrowed(store: IMetadataStore) -> IDatabaseTransaction:
    if ICoCommitStore.providedBy(store):
        return await store.join(object())
    return await store.join(object())  # refused: has no attribute "join"
