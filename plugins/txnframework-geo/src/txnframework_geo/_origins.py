"""Where a replicated message comes from: headers that stop loops, and keep what the producer's API cannot."""

from __future__ import annotations

from collections.abc import Mapping

from txnframework.model.entries import EntryMessage
from txnframework.model.positions import Position

PATH_HEADER = "txnframework-geo-path"
"""The identities of the deployments that a message has left, from the one where it was sent, separated by commas."""

ID_HEADER = "txnframework-geo-id"
"""The id of the message in the deployment where it was sent, as ``MessageID.parse`` reads it."""

PRODUCER_HEADER = "txnframework-geo-producer"
SEQUENCE_HEADER = "txnframework-geo-sequence"
PUBLISHED_HEADER = "txnframework-geo-published-ms"


def is_replicated(headers: Mapping[str, bytes]) -> bool:
    """Return whether a message with these headers came from another deployment."""
    return PATH_HEADER in headers


def leaves(message: EntryMessage, target: str, forward: bool) -> bool:
    """
    Return whether a message is to be replicated to the deployment with the identity ``target``.

    A message that came from another deployment stays, so that two deployments that replicate to each other send each
    message once. With ``forward`` it goes on, but never to a deployment that it has left.
    """
    path = dict(message.headers).get(PATH_HEADER)
    return path is None or (forward and target.encode() not in path.split(b","))


def headers_of(message: EntryMessage, source: str, segment: str, position: Position, producer: str) -> dict[str, bytes]:
    """Return the headers of the copy of a message, which leaves the deployment with the identity ``source``."""
    headers = dict(message.headers)
    path = headers.get(PATH_HEADER)
    if path is not None:
        headers[PATH_HEADER] = path + b"," + source.encode()
        return headers
    headers[PATH_HEADER] = source.encode()
    headers[ID_HEADER] = f"{segment}@{position}".encode()
    headers[PRODUCER_HEADER] = producer.encode()
    headers[SEQUENCE_HEADER] = str(message.sequence_id).encode()
    headers[PUBLISHED_HEADER] = str(message.published_ms).encode()
    return headers
