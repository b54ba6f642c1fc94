"""Who may use the gateway: everyone, or clients with one of its tokens."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from txnframework_pulsar.faults import Refused
from txnframework_pulsar.wire import messages_pb2 as pb

TOKEN_METHOD = "token"  # noqa: S105 - the name of a method
EVERYONE = ""
"""The user that all clients are if there are no tokens."""


class Access:
    """
    Accepts clients that show one of the tokens, and every client if there are none.

    Each token is a user. A user may do everything, except use the transactions of other users.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._users = {one.encode(): hashlib.sha256(one.encode()).hexdigest()[:16] for one in tokens}

    @property
    def has_tokens(self) -> bool:
        """Whether clients must show a token."""
        return bool(self._users)

    def user_of(self, connect: pb.Connect) -> str:
        """
        Return the user that a client is.

        :raises Refused: it shows no valid token.
        """
        if not self._users:
            return EVERYONE
        if connect.auth_method_name != TOKEN_METHOD:
            raise Refused(pb.AUTHENTICATION_ERROR, "this gateway wants a token")
        return self.user_with(connect.auth_data)

    def user_with(self, token: bytes) -> str:
        """
        Return the user of a token.

        :raises Refused: the token is not valid.
        """
        if not self._users:
            return EVERYONE
        # All tokens are compared, so that the time tells nothing.
        found = [user for known, user in self._users.items() if hmac.compare_digest(token, known)]
        if not found:
            raise Refused(pb.AUTHENTICATION_ERROR, "the token is not valid")
        return found[0]
