"""What actors of a mixture do, one module a subject; an action is a method, and its name what a scenario calls it."""

from __future__ import annotations

from txnframework_simulation.workloads.actions.branching import Branching
from txnframework_simulation.workloads.actions.consuming import Consuming
from txnframework_simulation.workloads.actions.contending import Contending
from txnframework_simulation.workloads.actions.hurrying import Hurrying
from txnframework_simulation.workloads.actions.juggling import Juggling
from txnframework_simulation.workloads.actions.refusing import Refusing
from txnframework_simulation.workloads.actions.removing import Removing
from txnframework_simulation.workloads.actions.reshaping import Reshaping
from txnframework_simulation.workloads.actions.sending import Sending
from txnframework_simulation.workloads.actions.surroundings import MixtureOptions, SubscriptionOptions

__all__ = ["Actor", "MixtureOptions", "SubscriptionOptions"]


class Actor(Sending, Hurrying, Consuming, Contending, Juggling, Refusing, Branching, Reshaping, Removing):
    """One actor of a mixture, with everything that it can do."""
