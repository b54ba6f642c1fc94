"""What actors of a mixture do, one module a subject; an action is a method, and its name what a scenario calls it."""

from __future__ import annotations

from txnframework_simulation.workloads.actions.acknowledgments import Contending, Juggling
from txnframework_simulation.workloads.actions.administration import Removing, Reshaping
from txnframework_simulation.workloads.actions.base import MixtureOptions, SubscriptionOptions
from txnframework_simulation.workloads.actions.consumers import Consuming, Refusing
from txnframework_simulation.workloads.actions.producers import Branching, Hurrying, Sending

__all__ = ["Actor", "MixtureOptions", "SubscriptionOptions"]


class Actor(Sending, Hurrying, Consuming, Contending, Juggling, Refusing, Branching, Reshaping, Removing):
    """One actor of a mixture, with everything that it can do."""
