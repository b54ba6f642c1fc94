"""What ``txnframework top`` shows, and what each key changes; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from txnframework_console.views import subscriptions, topics
from txnframework_console.views.subscriptions import SubscriptionsQuery
from txnframework_console.views.topics import TopicsQuery
from txnframework_console.views.transactions import TransactionsQuery

VIEWS = ("topics", "transactions", "subscriptions")
SORTS = {"topics": topics.SORTS, "transactions": ("timeout",), "subscriptions": subscriptions.SORTS}
FIRST_SORT = {"topics": "lag", "transactions": "timeout", "subscriptions": "lag"}

ScreenQuery = TopicsQuery | TransactionsQuery | SubscriptionsQuery


@dataclass(frozen=True, slots=True)
class ScreenState:
    """
    The state of the screen.

    ``text`` filters names. ``typing``: keys are added to the text. ``after``: the last transactions of the pages before
    this one. ``is_over``: the program ends.
    """

    view: str = "topics"
    sort: str = "lag"
    text: str = ""
    typing: bool = False
    page: int = 1
    after: tuple[str, ...] = ()
    is_over: bool = False

    def query(self, rows: int) -> ScreenQuery:
        """Return the query of the view, with this many rows."""
        if self.view == "topics":
            return TopicsQuery(self.text, self.sort, self.page, rows)
        if self.view == "subscriptions":
            return SubscriptionsQuery(self.text, self.sort, self.page, rows)
        return TransactionsQuery(self.after[-1] if self.after else "", rows=rows)


def after_key(state: ScreenState, key: str, next_after: str | None = None) -> ScreenState:
    """
    Return the state after a key: a character, or ``escape``, ``enter``, ``backspace``, ``up``, ``down``.

    ``next_after``: the last transaction on the screen, if there are further ones.
    """
    if state.typing:
        return _typed(state, key)
    if key in ("q", "escape"):
        return replace(state, is_over=True)
    if key in ("1", "2", "3"):
        return _view(state, VIEWS[int(key) - 1])
    if key == "tab":
        return _view(state, VIEWS[(VIEWS.index(state.view) + 1) % len(VIEWS)])
    if key == "s":
        sorts = SORTS[state.view]
        return replace(state, sort=sorts[(sorts.index(state.sort) + 1) % len(sorts)], page=1)
    if key == "/" and state.view != "transactions":
        return replace(state, typing=True)
    if key in ("n", "down", " "):
        after = (*state.after, next_after) if next_after is not None else state.after
        return replace(state, page=state.page + 1, after=after)
    if key in ("p", "up"):
        return replace(state, page=max(1, state.page - 1), after=state.after[:-1])
    return state


def _view(state: ScreenState, view: str) -> ScreenState:
    return ScreenState(view, FIRST_SORT[view], state.text)


def _typed(state: ScreenState, key: str) -> ScreenState:
    if key == "enter":
        return replace(state, typing=False)
    if key == "escape":
        return replace(state, typing=False, text="", page=1)
    if key == "backspace":
        return replace(state, text=state.text[:-1], page=1)
    if key == "tab" or len(key) != 1:
        return state
    return replace(state, text=state.text + key, page=1)
