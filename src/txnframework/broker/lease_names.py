"""Names of the leases by which processes divide the segments of a subscription."""

from __future__ import annotations

from txnframework.errors import InvalidName
from txnframework.model.names import PERSISTENT, SEGMENT, TopicName, topic_of


def dispatching_lease(segment: str, subscription: str) -> str:
    """Return the name of the lease whose holder dispatches a segment's messages to the subscription's consumers."""
    return f"dispatch {subscription} of {segment}"


def dispatching_leases(topic: TopicName, subscription: str) -> str:
    """
    Return the prefix of the names of a subscription's leases on a topic: of its segments, and of its members.

    Leases of other topics may have this prefix too.
    """
    if topic.domain == PERSISTENT:
        return dispatching_lease(str(topic), subscription)
    return dispatching_lease(f"{SEGMENT}://{topic.tenant}/{topic.namespace}/{topic.name}/", subscription)


def member_lease(topic: TopicName, subscription: str, session: str) -> str:
    """Return the name of the lease that a process holds while it shares a subscription of a topic."""
    return f"{_members(topic, subscription)}{session}"


def member_of(lease: str, topic: TopicName, subscription: str) -> str | None:
    """Return the session of the process that shares the subscription by this lease; None: it is another lease."""
    session = lease.removeprefix(_members(topic, subscription))
    # Names may contain spaces, and sessions contain none.
    return None if session == lease or " " in session else session


def is_lease_of(lease: str, topic: TopicName, subscription: str) -> bool:
    """Return whether a lease is that of a member, or of a segment that is dispatched to the subscription."""
    if member_of(lease, topic, subscription) is not None:
        return True
    prefix = dispatching_lease("", subscription)
    try:
        return lease.startswith(prefix) and topic_of(lease.removeprefix(prefix)) == topic
    except InvalidName:
        return False  # it is a member of a longer name


def _members(topic: TopicName, subscription: str) -> str:
    return f"{dispatching_leases(topic, subscription).removesuffix('/')}/member "
