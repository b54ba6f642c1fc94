"""``txnframework transaction``: what is open, what became of it, and ending it by hand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import config_option, with_client
from txnframework.cli._output import duration_of, output_option, print_facts, print_json, print_records, time_of
from txnframework.client import Client, parse_txn_id
from txnframework.model.positions import Limit
from txnframework.model.transactions import OpenQuery, State, Transaction

PAGE = 1_000


@click.group(no_args_is_help=True)
def transaction() -> None:
    """Look at transactions, and end those that nobody else will."""


@transaction.command("list")
@click.option(
    "--age-ms", type=click.IntRange(min=0), default=0, show_default=True, help="Only those open for at least so long."
)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="So many at most.")
@config_option
@output_option
@click.pass_obj
def list_transactions(loaded: Loaded, age_ms: int, limit: int, config: Path | None, output: str) -> None:
    """List open transactions, the one that is due first at the top."""

    async def work(client: Client) -> list[dict[str, Any]]:
        coordinator = await client.host.coordinator()
        now_ms = client.host.environment.now_ms()
        found: list[Transaction] = []
        while len(found) < limit:
            after = found[-1].txn_id if found else None
            page = await coordinator.list_open(OpenQuery(age_ms, after, Limit(min(PAGE, limit - len(found)))))
            if not page:
                break
            found.extend(page)
        return [_document(one, now_ms) for one in found]

    found = with_client(loaded, config, work)
    if output == "json":
        print_json(found)
    elif found:
        print_records([_row(one) for one in found])
    else:
        click.echo("No transaction is open.")


@transaction.command()
@click.argument("transaction_id")
@config_option
@output_option
@click.pass_obj
def describe(loaded: Loaded, transaction_id: str, config: Path | None, output: str) -> None:
    """
    Show a transaction in full, with the segments it wrote to and the subscriptions it acknowledged on.

    One that ended is known for a while only (transactions.retention_ms).
    """

    async def work(client: Client) -> dict[str, Any]:
        coordinator = await client.host.coordinator()
        found = await coordinator.describe(parse_txn_id(transaction_id))
        participants = [asdict(one) for one in sorted(found.participants)]
        return {**_document(found, client.host.environment.now_ms()), "participants": participants}

    found = with_client(loaded, config, work)
    if output == "json":
        print_json(found)
        return
    participants = found.pop("participants")
    print_facts(_row(found))
    if participants:
        print_records(participants)


@transaction.command()
@click.argument("transaction_id")
@config_option
@click.pass_obj
def abort(loaded: Loaded, transaction_id: str, config: Path | None) -> None:
    """
    Abort an open transaction, whoever's it is.

    Nothing it sent becomes visible, and what it acknowledged is delivered again. Aborting it once more succeeds; one
    that was committed stays committed, and the exit status is 1.
    """
    with_client(loaded, config, lambda client: client.abort(transaction_id, operator=True))
    click.echo(f"Transaction {transaction_id} is aborted.")


def _document(found: Transaction, now_ms: int) -> dict[str, Any]:
    """Return a transaction without its participants, as JSON shows it."""
    return {
        "transaction": str(found.txn_id),
        "state": found.state.value,
        "age_ms": max(0, now_ms - found.created_ms),
        "left_ms": found.deadline_ms - now_ms if found.state is State.OPEN else None,
        "created": time_of(found.created_ms),
        "ended": time_of(found.finalized_ms),
        "principal": found.principal or None,
        "session": found.session,
        "branches": None if found.branches is None else sorted(found.branches),
    }


def _row(document: dict[str, Any]) -> dict[str, object]:
    """Return it as people read it."""
    left_ms = document["left_ms"]
    row = {name: value for name, value in document.items() if name not in ("age_ms", "left_ms")}
    row["age"] = duration_of(document["age_ms"])
    row["times out in"] = None if left_ms is None else duration_of(left_ms) if left_ms > 0 else "overdue"
    return row
