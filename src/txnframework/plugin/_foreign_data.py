"""Data that another plugin's buffer wrote and that this process cannot judge: guessing would lose or repeat it."""

from __future__ import annotations

from txnframework.errors import ConfigurationError
from txnframework.model.names import PERSISTENT, topic_of


def foreign_data(segment: str, what: str, serve: str) -> ConfigurationError:
    """
    Return the error of a topic that is configured for other plugins than those that wrote it.

    ``what`` names the data of the other plugins, and ``serve`` what has to serve the topic.
    """
    topic = topic_of(segment)
    domain = PERSISTENT if topic.domain == PERSISTENT else "segment"
    reason = (
        f"{segment} holds {what}; let {serve} serve it, in its domain or for the namespace"
        f" {topic.tenant}/{topic.namespace}, or send what is to be kept to another topic"
    )
    return ConfigurationError(f"domains.{domain}", reason)
