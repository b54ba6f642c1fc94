"""Topics: the names that Pulsar clients use, and those of the framework."""

from __future__ import annotations

from txnframework.errors import InvalidName
from txnframework.model.names import DEFAULT_NAMESPACE, DEFAULT_TENANT, PERSISTENT, TOPIC, TOPIC_DOMAINS, TopicName

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
"""The topic by whose name clients find the transaction coordinators; it is never stored."""


def is_coordinator(text: str) -> bool:
    """Return whether a client asks for the transaction coordinators."""
    return text == COORDINATOR_TOPIC or text.startswith(f"{COORDINATOR_TOPIC}-partition-")


def topic_of(text: str, domain: str) -> TopicName:
    """
    Return the topic that a client names ``persistent://tenant/namespace/name``, in the domain that the gateway serves.

    :raises InvalidName: the name has another form, or is of a topic that Pulsar does not persist.
    """
    prefix, separator, rest = text.partition("://")
    if not separator:
        prefix, rest = PERSISTENT, text if "/" in text else f"{DEFAULT_TENANT}/{DEFAULT_NAMESPACE}/{text}"
    if prefix not in TOPIC_DOMAINS:
        raise InvalidName(text, "only persistent topics are served")
    # ``/`` in a local name: clients of the first Pulsar releases named a cluster too.
    parts = rest.split("/")
    if len(parts) != 3:
        raise InvalidName(text, "expected persistent://tenant/namespace/name")
    named = TopicName(domain, *parts)
    if named.internal:
        raise InvalidName(text, "names that begin with two underscores are internal")
    return named


def pulsar_name(topic: TopicName) -> str:
    """Return the name under which Pulsar clients know a topic."""
    return f"{PERSISTENT}://{topic.tenant}/{topic.namespace}/{topic.name}"


def scalable_name(topic: TopicName) -> str:
    """Return the name under which clients of Pulsar 5 know a topic."""
    return f"{TOPIC}://{topic.tenant}/{topic.namespace}/{topic.name}"
