"""``txnframework transaction find-hanging``: which transactions somebody should look at, why, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from txnframework.cli._boundary import STATUS_FAILED
from txnframework.cli._config_option import config_option
from txnframework.cli._loaded import Loaded
from txnframework.cli._opening import with_client
from txnframework.cli._transactions import document_of, participants_of
from txnframework.cli.output import duration_of, output_option, print_json, print_records
from txnframework.client import Client, HangingTransaction
from txnframework.model.transactions import State

PAGE = 100


@click.command("find-hanging")
@click.option(
    "--age-ms",
    type=click.IntRange(min=0),
    default=60_000,
    show_default=True,
    help="Only what has been open, or has ended without taking effect, for at least so long.",
)
@click.option("--limit", type=click.IntRange(min=1), default=1_000, show_default=True, help="So many at most.")
@config_option
@output_option
@click.pass_obj
@click.pass_context
def find_hanging(ctx: click.Context, loaded: Loaded, age_ms: int, limit: int, config: Path | None, output: str) -> None:
    """
    Show transactions that hang, why, and what to do about each.

    Those that have been open for long, and those that ended long ago and have not taken effect everywhere. Nothing is
    changed. Exit status 1 if there is one, 0 if there is none.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        skew_ms = client.host.config.transactions.max_clock_skew_ms
        found: list[HangingTransaction] = []
        while len(found) < limit:
            room = min(PAGE, limit - len(found))
            page = await client.find_hanging(age_ms, after=found[-1] if found else None, transactions_max=room)
            found += page
            if len(page) < room:
                break
        return [_document(one, client.host.environment.now_ms(), skew_ms) for one in found]

    found = with_client(loaded, config, work)
    if output == "json":
        print_json(found)
    elif found:
        print_records([_row(one) for one in found])
    else:
        click.echo(f"No transaction hangs for {duration_of(age_ms)} or longer.")
    if found:
        ctx.exit(STATUS_FAILED)


def _document(one: HangingTransaction, now_ms: int, skew_ms: int) -> dict[str, Any]:
    why, what_to_do = explain(one, now_ms, skew_ms)
    return {
        **document_of(one.transaction, now_ms),
        "hangs_ms": one.age_ms,
        "owner_lives": one.owner_lives,
        "operations_left": one.operations_left,
        "participants": participants_of(one.transaction),
        "why": why,
        "what_to_do": what_to_do,
    }


def _row(document: dict[str, Any]) -> dict[str, object]:
    return {
        "transaction": document["transaction"],
        "state": document["state"],
        "hangs for": duration_of(document["hangs_ms"]),
        "why": document["why"],
        "what to do": document["what_to_do"],
    }


def explain(one: HangingTransaction, now_ms: int, skew_ms: int) -> tuple[str, str]:
    """Return why a transaction hangs, and what to do about it."""
    txn = one.transaction
    abort = f"txnframework transaction abort {txn.txn_id}"
    if txn.state is not State.OPEN:
        places = ", ".join(
            f"{place.subscription} of {place.segment}" if place.subscription else place.segment
            for place in sorted(txn.participants)
        )
        return (
            f"{counted(one.operations_left)} not taken effect{f' at {places}' if places else ''}",
            f"txnframework transaction settle {txn.txn_id} settles it, or says why it cannot be",
        )
    if now_ms > txn.deadline_ms + skew_ms:
        return (
            "its timeout is over, and no process has aborted it",
            f"'txnframework upkeep', or any client that sweeps (transactions.sweep), aborts it; or: {abort}",
        )
    due = f"it times out in {duration_of(max(0, txn.deadline_ms - now_ms))}"
    if one.owner_lives is None:
        return "open, and whoever began it does not have to be alive", f"ask its owner; {due}; or: {abort}"
    if one.owner_lives:
        return "open, and the process that began it is alive", f"look at that process; {due}; or: {abort}"
    return (
        "open, and the process that began it is gone",
        f"'txnframework upkeep', or any client that sweeps (transactions.sweep), aborts it; or: {abort}",
    )


def counted(operations: int) -> str:
    """Return how many operations have done, or left undone, what follows."""
    return "1 operation has" if operations == 1 else f"{operations} operations have"
