"""Who may use the gateway: everyone, or clients with one of its tokens."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from txnframework_pulsar.faults import Refused
from txnframework_pulsar.wire import messages_pb2 as pb

TOKEN_METHOD = "token"  # noqa: S105 - the name of a method


class Access:
    """
    Accepts clients that show one of the tokens, and every client if there are none.

    A client may do everything that the gateway can.
    """

    def __init__(self, tokens: Iterable[str] = ()) -> None:
        self._tokens = tuple(one.encode() for one in tokens)

    def check(self, connect: pb.Connect) -> None:
        """
        Accept a client.

        :raises Refused: it shows no valid token.
        """
        if not self._tokens:
            return
        if connect.auth_method_name != TOKEN_METHOD:
            raise Refused(pb.AUTHENTICATION_ERROR, "this gateway wants a token")
        matches = [hmac.compare_digest(connect.auth_data, one) for one in self._tokens]
        if not any(matches):
            raise Refused(pb.AUTHENTICATION_ERROR, "the token is not valid")
