"""What was written through another plugin's buffer, which nobody here may judge: guessing would lose or repeat it."""

from __future__ import annotations

from txnframework.errors import ConfigurationError
from txnframework.model.names import PERSISTENT, topic_of


def written_elsewhere(segment: str, what: str, serve: str) -> ConfigurationError:
    """
    Return the error of a topic that is configured for other plugins than it was written through.

    ``what`` it holds of theirs, and what is to ``serve`` it.
    """
    topic = topic_of(segment)
    domain = PERSISTENT if topic.domain == PERSISTENT else "segment"
    reason = (
        f"{segment} holds {what}; let {serve} serve it, in its domain or for the namespace"
        f" {topic.tenant}/{topic.namespace}, or send what is to be kept to another topic"
    )
    return ConfigurationError(f"domains.{domain}", reason)
