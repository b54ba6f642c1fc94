"""Drawing of the views of ``txnframework top``, and their JSON documents."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from txnframework_console.terminal.state import VIEWS, ScreenState
from txnframework_console.texts import clock, duration, moment, number, short_topic, visible
from txnframework_console.views.overview import reason_of
from txnframework_console.views.subscriptions import SubscriptionRow, SubscriptionsView
from txnframework_console.views.topics import TopicRow, TopicsView
from txnframework_console.views.transactions import TransactionRow, TransactionsView

FRAME_LINES = 6
"""The lines of the screen around the rows."""
UNKNOWN = "-"

ScreenView = TopicsView | TransactionsView | SubscriptionsView


def drawn(state: ScreenState, view: ScreenView | None, problem: str, now_ms: int) -> RenderableType:
    """Return the screen."""
    parts: list[RenderableType] = [_header(state, now_ms)]
    if problem:
        parts.append(Text(problem, style="bold red"))
    if view is None:
        parts.append(Text("" if problem else "Reading the stores…", style="dim"))
    else:
        parts.append(_table(view))
        parts.append(_footer(state, view))
    return Group(*parts)


def _header(state: ScreenState, now_ms: int) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place, name in enumerate(VIEWS, 1):
        line.append(f" {place} {name} ", style="reverse" if name == state.view else "dim")
    if state.typing or state.text:
        line.append(f"  /{visible(state.text)}", style="bold")
        line.append("_" if state.typing else "")
    line.append(f"  {clock(now_ms)}", style="dim")
    return line


def _footer(state: ScreenState, view: ScreenView) -> Text:
    line = Text(style="dim", no_wrap=True, overflow="ellipsis")
    if isinstance(view, TransactionsView):
        opened = sum(one.open_count for one in view.families)
        line.append(f"{number(opened)} open; n next page, p previous; tab view, q quit")
        return line
    page = view.page
    line.append(f"{number(page.total)} {state.view}, page {page.number} of {page.pages}, by {state.sort}; ")
    if view.unread:
        line.append(f"{number(view.unread)} topics not read yet; ")
    line.append("s sort, / filter, n next page, p previous; tab view, q quit")
    return line


def _table(view: ScreenView) -> Table:
    table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1))
    if isinstance(view, TopicsView):
        _columns(table, ("topic", ">segments", ">messages", ">in/s", ">waiting", ">largest lag"))
        for topic in view.page.rows:
            table.add_row(*map(Text, _topic_cells(topic)))
    elif isinstance(view, SubscriptionsView):
        _columns(table, ("subscription", "topic", ">lag", "held by", ">redelivered", ">dead letters"))
        for subscription in view.page.rows:
            table.add_row(*map(Text, _subscription_cells(subscription)))
    else:
        _columns(table, ("transaction", "state", ">age", "owner", ">holds back", "attention"))
        for transaction in view.rows:
            table.add_row(*map(Text, _transaction_cells(transaction, view.now_ms)))
    return table


def _columns(table: Table, titles: tuple[str, ...]) -> None:
    for title in titles:
        right = title.startswith(">")
        table.add_column(title.lstrip(">"), justify="right" if right else "left", no_wrap=True, overflow="ellipsis")


def _known(count: int | None) -> str:
    return UNKNOWN if count is None else number(count)


def _topic_cells(row: TopicRow) -> tuple[str, ...]:
    return (
        visible(short_topic(row.name)),
        str(len(row.layout.active())),
        _known(None if row.sample is None else row.sample.messages),
        UNKNOWN if row.rate is None else f"{row.rate:.1f}",
        _known(row.undecided),
        _known(row.lag),
    )


def _subscription_cells(row: SubscriptionRow) -> tuple[str, ...]:
    at_most = "≤ " if row.found is not None and not row.found.lag.exact else ""
    return (
        visible(row.name),
        visible(short_topic(row.topic)),
        at_most + _known(row.lag),
        visible(", ".join(row.holders)) or "no process",
        _known(row.redelivered),
        _known(row.letters),
    )


def _transaction_cells(row: TransactionRow, now_ms: int) -> tuple[str, ...]:
    owner = " ".join(filter(None, (row.found.principal, row.process or row.found.session)))
    lives = {True: " (alive)", False: " (gone)", None: ""}[row.owner_lives]
    held = f"{number(row.operations_left)} op." if not row.is_open else _known(row.undecided)
    return (
        row.id,
        row.found.state.value.lower(),
        duration(row.age_ms),
        visible(owner + lives) or UNKNOWN,
        held,
        reason_of(row, now_ms),
    )


# -- documents ----------------------------------------------------------------------------------------


def document_of(
    topics: TopicsView, transactions: TransactionsView, subscriptions: SubscriptionsView, now_ms: int
) -> dict[str, Any]:
    """Return the JSON document of ``--once --output json``."""
    return {
        "format": 1,
        "read": moment(now_ms),
        "families": [
            {
                "family": one.family,
                "open_transactions": one.open_count,
                "oldest_age_ms": one.oldest_age_ms,
                "operations_left": one.operations_left,
            }
            for one in transactions.families
        ],
        "topics": [_topic_document(one) for one in topics.page.rows],
        "transactions": [_transaction_document(one, now_ms) for one in transactions.rows],
        "subscriptions": [_subscription_document(one) for one in subscriptions.page.rows],
    }


def _topic_document(row: TopicRow) -> dict[str, Any]:
    return {
        "topic": row.name,
        "segments": len(row.layout.active()),
        "messages": None if row.sample is None else row.sample.messages,
        "undecided": row.undecided,
        "largest_lag": row.lag,
    }


def _transaction_document(row: TransactionRow, now_ms: int) -> dict[str, Any]:
    return {
        "transaction": row.id,
        "family": row.found.txn_id.family,
        "state": row.found.state.value,
        "age_ms": row.age_ms,
        "principal": row.found.principal or None,
        "session": row.found.session,
        "owner_lives": row.owner_lives,
        "process": row.process or None,
        "undecided": row.undecided,
        "operations_left": row.operations_left,
        "attention": reason_of(row, now_ms) or None,
        "participants": [
            {"segment": one.segment, "subscription": one.subscription or None} for one in sorted(row.found.participants)
        ],
    }


def _subscription_document(row: SubscriptionRow) -> dict[str, Any]:
    return {
        "topic": row.topic,
        "subscription": row.name,
        "lag": row.lag,
        "lag_is_exact": None if row.found is None else row.found.lag.exact,
        "holders": list(row.holders),
        "redelivered": row.redelivered,
        "dead_letters": row.letters,
    }
