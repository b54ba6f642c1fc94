"""``txnframework transaction``: inspect transactions, and end them by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from txnframework.cli._groups import CommandGroup
from txnframework.cli._statuses import STATUS_DONE, STATUS_FAILED
from txnframework.cli.output import duration_of, output_option, print_facts, print_json, print_records, time_of
from txnframework.cli.stores import LoadedPlugins, config_option, with_client
from txnframework.client import Client, HangingTransaction, parse_txn_id
from txnframework.interfaces import ITransactionCoordinator
from txnframework.model.positions import Limit
from txnframework.model.transactions import OpenQuery, Participant, State, Transaction

LIST_PAGE = 1_000
HANGING_PAGE = 100


@click.group(cls=CommandGroup, group_name="transaction", no_args_is_help=True)
def transaction() -> None:
    """Inspect transactions, and end abandoned ones."""


@transaction.command("list")
@click.option(
    "--age-ms",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Only transactions that have been open for at least this time.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Maximum number of transactions."
)
@config_option
@output_option
@click.pass_obj
def list_transactions(loaded: LoadedPlugins, age_ms: int, limit: int, config: Path | None, output: str) -> None:
    """
    List open transactions.

    Lists both families, ordered by deadline.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        now_ms = client.host.environment.now_ms()
        found: list[Transaction] = []
        for coordinator in await client.host.coordinators():
            found += await _list_open(coordinator, age_ms, limit)
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
def describe(loaded: LoadedPlugins, transaction_id: str, config: Path | None, output: str) -> None:
    """
    Show the details of a transaction.

    Shows the segments that each branch wrote to, and the subscriptions that it acknowledged on. Branch 0 belongs to
    the process that ends the transaction; every other branch belongs to another writer. COUNTS: whether the branch is
    part of the commit. Operations that have taken effect are not shown. An ended transaction is known for
    transactions.retention_ms.
    """

    async def work(client: Client) -> dict[str, Any]:
        txn_id = parse_txn_id(transaction_id)
        found = await (await client.host.coordinator_for(txn_id)).describe(txn_id)
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
@output_option
@click.pass_obj
def abort(loaded: LoadedPlugins, transaction_id: str, config: Path | None, output: str) -> None:
    """
    Abort an open transaction of any process.

    Its messages never become visible, and the messages that it acknowledged are delivered again. Aborting an aborted
    transaction succeeds. A committed transaction stays committed, and the exit status is 1.
    """

    async def work(client: Client) -> tuple[str | None, str | None]:
        found = await client.describe_transaction(transaction_id)
        await client.abort(transaction_id, operator=True)
        return found.principal or None, found.process

    principal, process = with_client(loaded, config, work)
    if output == "json":
        owner = {"principal": principal, "process": process}
        print_json({"transaction": transaction_id, "state": State.ABORTED.value, **owner})
        return
    owners = [f"principal {principal}"] * (principal is not None) + [f"process {process}"] * (process is not None)
    click.echo(f"Aborted transaction {transaction_id}{' of ' if owners else ''}{', '.join(owners)}.")


@transaction.command()
@click.argument("transaction_id")
@config_option
@output_option
@click.pass_obj
@click.pass_context
def settle(ctx: click.Context, loaded: LoadedPlugins, transaction_id: str, config: Path | None, output: str) -> None:
    """
    Apply the outcome of an ended transaction now.

    Clients do this in the background. If a participant cannot be settled, standard error says why, and the exit status
    is 1.
    """
    left = with_client(loaded, config, lambda client: client.settle(transaction_id))
    if output == "json":
        print_json({"transaction": transaction_id, "operations_left": left})
        ctx.exit(STATUS_FAILED if left else STATUS_DONE)
    if left:
        click.echo(f"{_operations_have(left)} not taken effect yet; clients try again in the background.")
        ctx.exit(STATUS_FAILED)
    click.echo(f"Transaction {transaction_id} has taken effect everywhere.")


@transaction.command("find-hanging")
@click.option(
    "--age-ms",
    type=click.IntRange(min=0),
    default=60_000,
    show_default=True,
    help="Show transactions that have been open this long, or ended this long ago and are not settled.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=1_000, show_default=True, help="Maximum number of transactions."
)
@config_option
@output_option
@click.pass_obj
@click.pass_context
def find_hanging(
    ctx: click.Context, loaded: LoadedPlugins, age_ms: int, limit: int, config: Path | None, output: str
) -> None:
    """
    List hanging transactions, with the reason and the remedy.

    A transaction hangs if it has been open for long, or if it ended long ago and has not taken effect everywhere.
    Changes nothing. Exit status 1 if a transaction hangs, else 0.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        skew_ms = client.host.config.transactions.max_clock_skew_ms
        found: list[HangingTransaction] = []
        while len(found) < limit:
            size = min(HANGING_PAGE, limit - len(found))
            page = await client.find_hanging(age_ms, after=found[-1] if found else None, transactions_max=size)
            found += page
            if len(page) < size:
                break
        return [_hanging_document(one, client.host.environment.now_ms(), skew_ms) for one in found]

    found = with_client(loaded, config, work)
    if output == "json":
        print_json(found)
    elif found:
        print_records([_hanging_row(one) for one in found])
    else:
        younger = " '--age-ms 0' lists younger ones." if age_ms else ""
        click.echo(f"No transaction has been hanging for {duration_of(age_ms)} or longer.{younger}")
    if found:
        ctx.exit(STATUS_FAILED)


def _hanging_document(one: HangingTransaction, now_ms: int, skew_ms: int) -> dict[str, Any]:
    reason, remedy = explain(one, now_ms, skew_ms)
    return {
        **document_of(one.transaction, now_ms),
        "hangs_ms": one.age_ms,
        "owner_lives": one.owner_lives,
        "operations_left": one.operations_left,
        "participants": participants_of(one.transaction),
        "reason": reason,
        "remedy": remedy,
    }


def _hanging_row(document: dict[str, Any]) -> dict[str, object]:
    return {
        "transaction": document["transaction"],
        "state": document["state"],
        "hangs for": duration_of(document["hangs_ms"]),
        "reason": document["reason"],
        "remedy": document["remedy"],
    }


def explain(hanging: HangingTransaction, now_ms: int, skew_ms: int) -> tuple[str, str]:
    """Return the reason why a transaction hangs, and the remedy."""
    txn = hanging.transaction
    abort = f"run 'txnframework transaction abort {txn.txn_id}'"
    sweep = "run 'txnframework maintain', or wait for a client that sweeps (transactions.sweep)"
    if txn.state is not State.OPEN:
        participants = ", ".join(
            f"{one.subscription} of {one.segment}" if one.subscription else one.segment
            for one in sorted(txn.participants)
        )
        return (
            f"{_operations_have(hanging.operations_left)} not taken effect"
            + (f" in {participants}" if participants else ""),
            f"run 'txnframework transaction settle {txn.txn_id}', which settles it or says what prevents it",
        )
    if now_ms > txn.deadline_ms + skew_ms:
        lives = {True: " and is running", False: " and has ended", None: ""}[hanging.owner_lives]
        begun = f" ({txn.process} began it{lives})" if txn.process else ""
        return f"its timeout has passed, and no process has aborted it{begun}", f"{sweep}; or {abort}"
    wait = f"wait {duration_of(max(0, txn.deadline_ms - now_ms))} for its timeout"
    if hanging.owner_lives is None:
        return "open, and not bound to the process that began it", f"ask its owner; {wait}; or {abort}"
    named = f" ({txn.process})" if txn.process else ""
    if hanging.owner_lives:
        return f"open, and the process that began it{named} is running", f"check that process; {wait}; or {abort}"
    return f"open, and the process that began it{named} has ended", f"{sweep}; or {abort}"


def _operations_have(operations: int) -> str:
    """Return the beginning of a sentence about a number of operations."""
    return "1 operation has" if operations == 1 else f"{operations} operations have"


async def _list_open(coordinator: ITransactionCoordinator, age_ms: int, limit: int) -> list[Transaction]:
    """Return the open transactions of one family with the earliest deadlines."""
    found: list[Transaction] = []
    while len(found) < limit:
        after = found[-1].txn_id if found else None
        page = await coordinator.list_open(OpenQuery(age_ms, after, Limit(min(LIST_PAGE, limit - len(found)))))
        if not page:
            break
        found.extend(page)
    return found


def _parts(found: Transaction) -> list[dict[str, Any]]:
    """Return the operations of each branch; empty for a family that does not record them."""
    return [
        {
            "branch": part.branch,
            "counts": found.counts(part.branch) if found.state is State.COMMITTED else None,
            "operation": "acknowledged" if part.participant.subscription else "wrote",
            **participant_of(part.participant),
        }
        for part in sorted(found.parts)
    ]


def document_of(found: Transaction, now_ms: int) -> dict[str, Any]:
    """Return the JSON document of a transaction, without its participants."""
    return {
        "transaction": str(found.txn_id),
        "family": found.txn_id.family,
        "state": found.state.value,
        "age_ms": max(0, now_ms - found.created_ms),
        "left_ms": found.deadline_ms - now_ms if found.state is State.OPEN else None,
        "created": time_of(found.created_ms),
        "ended": time_of(found.finalized_ms),
        "principal": found.principal or None,
        "process": found.process,
        "session": found.session,
        "branches": None if found.branches is None else sorted(found.branches),
    }


def row_of(document: dict[str, Any]) -> dict[str, object]:
    """Return a document as a row of a table."""
    left_ms = document["left_ms"]
    row = {name: value for name, value in document.items() if name not in ("family", "age_ms", "left_ms", "session")}
    row["age"] = duration_of(document["age_ms"])
    row["times out in"] = None if left_ms is None else duration_of(left_ms) if left_ms > 0 else "overdue"
    return row


def participants_of(found: Transaction) -> list[dict[str, str]]:
    """Return the JSON documents of the participants."""
    return [participant_of(one) for one in sorted(found.participants)]


def participant_of(one: Participant) -> dict[str, str]:
    """Return the JSON document of a participant; without a subscription, the segment was written to."""
    return {"segment": one.segment, "subscription": one.subscription}
