"""The transactions of the deployment; clients know one coordinator."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from txnframework.client import Client, HangingTransaction
from txnframework.errors import TransactionNotFound
from txnframework.model.transactions import State, Transaction
from txnframework_pulsar.admin.answers import slow_transactions, transaction_metadata
from txnframework_pulsar.admin.requests import answer, number
from txnframework_pulsar.faults import Refused
from txnframework_pulsar.ids import txn_of
from txnframework_pulsar.transactions import COORDINATOR
from txnframework_pulsar.turn import ServingTurn
from txnframework_pulsar.wire import messages_pb2 as pb

TRANSACTIONS = "/admin/v3/transactions"
PAGE = 100
LISTED_MAX = 1_000
"""The most transactions in one answer."""


class TransactionResources:
    """Describes transactions. An open one can be committed and aborted by its client, and by ``txnframework``."""

    def __init__(self, client: Client, turn: ServingTurn) -> None:
        self._client = client
        self._turn = turn

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(f"{TRANSACTIONS}/coordinators", self._coordinators),
            Route(f"{TRANSACTIONS}/coordinatorStats", self._statistics),
            Route(f"{TRANSACTIONS}/slowTransactions/{{age_ms}}", self._slow),
            Route(f"{TRANSACTIONS}/transactionMetadata/{{most}}/{{least}}", self._described),
        ]

    async def _coordinators(self, _: Request) -> Response:
        return answer([{"id": COORDINATOR, "brokerServiceUrl": self._turn.holder or None}])

    async def _statistics(self, request: Request) -> Response:
        families = await self._client.count_transactions()
        found = {"state": "Ready", "ongoingTxnSize": sum(one.open_count for one in families)}
        asked = request.query_params.get("coordinatorId")
        return answer({str(COORDINATOR): found} if asked is None else found)

    async def _slow(self, request: Request) -> Response:
        age_ms = number(request, "age_ms")
        found: tuple[HangingTransaction, ...] = ()
        while len(found) < LISTED_MAX:
            page = await self._client.find_hanging(age_ms, after=found[-1] if found else None, transactions_max=PAGE)
            found += page
            if len(page) < PAGE:
                break
        return answer(slow_transactions([await self._completed(one.transaction) for one in found]))

    async def _described(self, request: Request) -> Response:
        most, least = number(request, "most"), number(request, "least")
        txn_id = txn_of(most, least)
        if txn_id is None:
            raise Refused(pb.TRANSACTION_NOT_FOUND, f"there is no transaction ({most},{least})")
        return answer(transaction_metadata(await self._client.describe_transaction(txn_id)))

    async def _completed(self, found: Transaction) -> Transaction:
        """Return an open transaction with its participants; one that has ended names those that are not settled."""
        if found.state is State.OPEN:
            with suppress(TransactionNotFound):  # it ended meanwhile, and was forgotten
                return await self._client.describe_transaction(found.txn_id)
        return found
