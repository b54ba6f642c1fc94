"""``txnframework transaction``: what is open, what became of it, and ending it by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from txnframework.cli._boundary import STATUS_FAILED
from txnframework.cli._config_option import config_option
from txnframework.cli._groups import CommandGroup
from txnframework.cli._hanging import counted, find_hanging
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client
from txnframework.cli._transactions import document_of, participant_of, participants_of, row_of
from txnframework.cli.output import duration_of, output_option, print_facts, print_json, print_records
from txnframework.client import Client, parse_txn_id
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.positions import Limit
from txnframework.model.transactions import OpenQuery, State, Transaction

PAGE = 1_000


@click.group(cls=CommandGroup, place="transaction", no_args_is_help=True)
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
    """
    List open transactions.

    Those of every family, the one that is due first at the top.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        now_ms = client.host.environment.now_ms()
        found: list[Transaction] = []
        for coordinator in await client.host.coordinators():
            found += await _open_ones(coordinator, age_ms, limit)
        found.sort(key=lambda one: one.deadline_ms)
        return [document_of(one, now_ms) for one in found[:limit]]

    found = with_client(loaded, config, work)
    if output == "json":
        print_json(found)
    elif found:
        print_records([row_of(one) for one in found])
    else:
        click.echo(f"No transaction has been open for {duration_of(age_ms)}." if age_ms else "No transaction is open.")


@transaction.command()
@click.argument("transaction_id")
@config_option
@output_option
@click.pass_obj
def describe(loaded: Loaded, transaction_id: str, config: Path | None, output: str) -> None:
    """
    Show a transaction in full.

    With what each of its branches wrote and acknowledged, and where. Branch 0 is that of the process that ends it,
    every other one that of another writer; of a committed transaction, COUNTS says whether the branch does. What has
    taken effect is not shown any more. One that ended is known for a while only (transactions.retention_ms).
    """

    async def work(client: Client) -> dict[str, Any]:
        asked = parse_txn_id(transaction_id)
        found = await (await client.host.coordinator_for(asked)).describe(asked)
        return {
            **document_of(found, client.host.environment.now_ms()),
            "participants": participants_of(found),
            "parts": _parts(found),
        }

    found = with_client(loaded, config, work)
    if output == "json":
        print_json(found)
        return
    participants, parts = found.pop("participants"), found.pop("parts")
    print_facts(row_of(found))
    if parts or participants:
        print_records(parts or participants)


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


@transaction.command()
@click.argument("transaction_id")
@config_option
@click.pass_obj
@click.pass_context
def settle(ctx: click.Context, loaded: Loaded, transaction_id: str, config: Path | None) -> None:
    """
    Make an outcome take effect now.

    Of a transaction that has ended, everywhere. Clients do that by themselves. Where one of its participants cannot be
    settled, standard error says why, and the exit status is 1.
    """
    left = with_client(loaded, config, lambda client: client.settle(transaction_id))
    if left:
        click.echo(f"{counted(left)} not taken effect yet; clients try again from time to time.")
        ctx.exit(STATUS_FAILED)
    click.echo(f"Transaction {transaction_id} has taken effect everywhere.")


transaction.add_command(find_hanging)


async def _open_ones(coordinator: ITransactionCoordinator, age_ms: int, limit: int) -> list[Transaction]:
    """Return the open transactions of one family that are due first."""
    found: list[Transaction] = []
    while len(found) < limit:
        after = found[-1].txn_id if found else None
        page = await coordinator.list_open(OpenQuery(age_ms, after, Limit(min(PAGE, limit - len(found)))))
        if not page:
            break
        found.extend(page)
    return found


def _parts(found: Transaction) -> list[dict[str, Any]]:
    """Return what each branch did where; empty where the family does not record that."""
    return [
        {
            "branch": part.branch,
            "counts": found.counts(part.branch) if found.state is State.COMMITTED else None,
            "did": "acknowledged" if part.participant.subscription else "wrote",
            **participant_of(part.participant),
        }
        for part in sorted(found.parts)
    ]
