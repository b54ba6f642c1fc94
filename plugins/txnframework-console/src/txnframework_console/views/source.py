"""What views are read from, and pages of long lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from txnframework.client import Client
from txnframework_console.catalog import Catalog

PAGE_ROWS = 50
SURVEY_TOPICS = 50
"""The number of topics beside those on the page that one reading of a view that orders by lag may read."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Source:
    """
    The client and the catalog of the console; ``now_ms``: the time of this reading.

    ``changes``: whether a reading may settle what has ended. Otherwise views leave out what they cannot read without.
    """

    client: Client
    catalog: Catalog
    now_ms: int
    changes: bool = False


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """A page of a list: its rows, its number from 1 on, the number of pages, and the number of rows in all pages."""

    rows: tuple[T, ...]
    number: int
    pages: int
    total: int


def page_of(rows: Sequence[T], number: int, size: int = PAGE_ROWS) -> ListPage[T]:
    """Return a page of a list; a number beyond the end gives the last page."""
    pages = max(1, -(-len(rows) // size))
    shown = min(max(1, number), pages)
    return ListPage(tuple(rows[(shown - 1) * size : shown * size]), shown, pages, len(rows))
