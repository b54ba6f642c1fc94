"""No wrapper of a store hides a capability, because then the paths that use it would never run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from zope.interface import Attribute, classImplements, providedBy
from zope.interface.interface import InterfaceClass, Method

import txnframework.interfaces as interfaces
from txnframework.broker import ForwardingProxy
from txnframework.broker.metrics import MeasuredMetadataStore, MeasuredPendingAcks, MetricsObserver
from txnframework.broker.observers import ObservedCoordinator
from txnframework.interfaces import (
    IAppendedWatch,
    IDatabaseTransaction,
    ILease,
    ILedgerStore,
    IManagedLedger,
    IMetadataStore,
    IPendingAckStore,
    ITransactionCoordinator,
    IValueWatch,
    IWatch,
)
from txnframework.metrics import Metrics
from txnframework.model import Key
from txnframework_simulation.simulator import faulty_stores
from txnframework_simulation.simulator.faulty_stores import (
    FaultyDatabaseTransaction,
    FaultyLease,
    FaultyLedger,
    FaultyLedgerStore,
    FaultyMetadataStore,
    FaultyTailWatch,
    FaultyValueWatch,
    FaultyWatch,
)
from txnframework_simulation.simulator.loop import SimulatedLoop
from txnframework_simulation.simulator.store_calls import StoreCalls

ROLES: dict[type, InterfaceClass] = {
    FaultyWatch: IWatch,
    FaultyValueWatch: IValueWatch,
    FaultyTailWatch: IAppendedWatch,
    FaultyLease: ILease,
    FaultyDatabaseTransaction: IDatabaseTransaction,
    FaultyMetadataStore: IMetadataStore,
    FaultyLedger: IManagedLedger,
    FaultyLedgerStore: ILedgerStore,
    MeasuredMetadataStore: IMetadataStore,
    ObservedCoordinator: ITransactionCoordinator,
    MeasuredPendingAcks: IPendingAckStore,
}
"""Each wrapper, and the role of the wrapped object."""


def capabilities(role: InterfaceClass) -> list[InterfaceClass]:
    """The role, all roles that promise more than it, and what any store may be able to do beside."""
    known = [one for name in interfaces.__all__ if isinstance(one := getattr(interfaces, name), InterfaceClass)]
    return [one for one in known if one.extends(role, strict=False)] + [interfaces.IRestorable]


def behind(role: InterfaceClass) -> Any:
    """Something that can do what a role promises; each of its attributes is known by the name."""

    async def answer(*_: Any, **__: Any) -> Any:
        return None

    names = {
        name: answer if isinstance(promised, Method) else None
        for name, promised in role.namesAndDescriptions(all=True)
        if isinstance(promised, Attribute)
    }
    made = type(f"Behind{role.__name__}", (), names)
    classImplements(made, role)
    return made()


def before(wrapper: type, real: Any) -> Any:
    """The wrapper around it."""
    if wrapper is MeasuredPendingAcks:
        return MeasuredPendingAcks(real, Metrics(), "orders", "billing")
    if wrapper is ObservedCoordinator:
        return ObservedCoordinator(real, MetricsObserver(Metrics()))
    return wrapper(real, StoreCalls() if wrapper.__module__ == faulty_stores.__name__ else Metrics())


CASES = [(wrapper, one) for wrapper, role in ROLES.items() for one in capabilities(role)]


@pytest.mark.parametrize(("wrapper", "role"), CASES, ids=lambda one: one.__name__)
def test_nothing_is_hidden(wrapper: type, role: InterfaceClass) -> None:
    """A wrapper promises what stands behind it promises, and has every attribute of it."""
    real = behind(role)
    if not ROLES[wrapper].providedBy(real):
        classImplements(type(real), ROLES[wrapper])  # what any store may be able to do beside its role
        for name in ROLES[wrapper].names(all=True):
            if not hasattr(type(real), name):
                setattr(type(real), name, None)
    wrapped = before(wrapper, real)
    assert [one for one in providedBy(real).flattened() if not one.providedBy(wrapped)] == []
    assert [name for name in role.names(all=True) if not hasattr(wrapped, name)] == []


def test_every_wrapper_is_tried() -> None:
    """One that is added is added here; so is one that does not pass on by itself what it does not know."""
    wrappers = {one for one in _below(ForwardingProxy) if one.__module__.startswith("txnframework.")}
    named = {one for name, one in vars(faulty_stores).items() if name.startswith("Faulty")}
    assert wrappers | named == set(ROLES)


def test_what_a_store_gives_out_hides_nothing() -> None:
    """A watch that announces the new value of a record does so through the wrapper, too."""

    class Store:
        identity = session = ""

        async def watch(self, _: object) -> Any:
            return behind(IValueWatch)

    classImplements(Store, IMetadataStore)
    loop = SimulatedLoop()
    watch = loop.run_until_complete(FaultyMetadataStore(Store(), StoreCalls()).watch(Key("/k")))
    loop.close()
    assert IValueWatch.providedBy(watch)


def _below(kind: type) -> Iterable[type]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)
