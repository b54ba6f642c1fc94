"""What actors of a mixture do, one module a subject; an action is a method, and its name what a scenario calls it."""

from __future__ import annotations

from txnframework.testing.workloads.actions.branching import Branching
from txnframework.testing.workloads.actions.consuming import Consuming
from txnframework.testing.workloads.actions.contending import Contending
from txnframework.testing.workloads.actions.hurrying import Hurrying
from txnframework.testing.workloads.actions.juggling import Juggling
from txnframework.testing.workloads.actions.refusing import Refusing
from txnframework.testing.workloads.actions.removing import Removing
from txnframework.testing.workloads.actions.reshaping import Reshaping
from txnframework.testing.workloads.actions.sending import Sending
from txnframework.testing.workloads.actions.surroundings import MixtureOptions, SubscriptionOptions

__all__ = ["Actor", "MixtureOptions", "SubscriptionOptions"]


class Actor(Sending, Hurrying, Consuming, Contending, Juggling, Refusing, Branching, Reshaping, Removing):
    """One actor of a mixture, with everything that it can do."""
