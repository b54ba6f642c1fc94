"""The groups of acknowledgment requests that one record may hold."""

from __future__ import annotations

from txnframework.model.acks import AckRequest
from txnframework.runtime.call_groups import GroupRules


def ack_group_rules(acks_max: int) -> GroupRules[AckRequest]:
    """Return the rules: requests of one branch, up to ``acks_max`` acknowledgments; with 0, one request."""
    return GroupRules(_joins, lambda request: len(request.acks), acks_max, "an acknowledgment")


def _joins(request: AckRequest, first: AckRequest) -> bool:
    """Return whether two requests may share a record; a request with a processed range has a record of its own."""
    if request.processed is not None or first.processed is not None:
        return False
    mine, theirs = ((one.branch, one.incarnation, one.principal) for one in (request, first))
    return mine == theirs
