"""
Actions of the actors of a mixture, with one module for each subject.

An action is a method, and scenarios use its name.
"""

from __future__ import annotations

from txnframework_simulation.workloads.actions.acknowledgments import Contending, Juggling
from txnframework_simulation.workloads.actions.administration import Removing, Reshaping
from txnframework_simulation.workloads.actions.base import MixtureOptions, SubscriptionOptions
from txnframework_simulation.workloads.actions.consumers import Consuming, Refusing
from txnframework_simulation.workloads.actions.producers import Branching, Hurrying, Sending
from txnframework_simulation.workloads.actions.whole_transactions import Transacting

__all__ = ["Actor", "MixtureOptions", "SubscriptionOptions"]


class Actor(Sending, Hurrying, Transacting, Consuming, Contending, Juggling, Refusing, Branching, Reshaping, Removing):
    """One actor of a mixture, with all actions."""
