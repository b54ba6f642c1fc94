"""The texts of statements for SQLite's driver, and their parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

# The rows that one INSERT adds at most: more do not make it faster, and every SQLite allows as many parameters.
_ROWS_MAX = 64


class CompiledStatement:
    """
    A statement's text for the driver and the order of its parameters.

    It is compiled once in the life of the connection, and the driver is called directly. SQLAlchemy's work for each
    execution takes several times as long as SQLite takes for such a statement.
    """

    def __init__(self, compiled: SQLCompiler) -> None:
        self.text = str(compiled)
        # The values of one row of an INSERT; other statements have none.
        self._row = f"({', '.join('?' * len(compiled.positiontup or ()))})"
        self._texts: dict[int, str] = {}
        self._rows_max = _ROWS_MAX if self.text.count(f" VALUES {self._row}") == 1 else 0
        self._defaults = dict(compiled.params)
        self._order: tuple[str, ...] | None = tuple(compiled.positiontup) if compiled.positiontup is not None else None
        # Several parameters, all of which are given with each execution.
        self._given: Callable[[Mapping[str, object]], tuple[object, ...]] | None = None
        if (
            self._order is not None
            and len(self._order) > 1
            and all(compiled.binds[name].required for name in self._order)
        ):
            self._given = itemgetter(*self._order)

    def bind(self, given: Mapping[str, object]) -> Any:
        """Return the parameters in the driver's form."""
        if self._given is not None:
            return self._given(given)
        if self._order is None:
            return {**self._defaults, **given}
        return tuple([given[name] if name in given else self._defaults[name] for name in self._order])

    def execute_many(self, cursor: DBAPICursor, rows: Sequence[Mapping[str, object]]) -> None:
        """
        Execute the statement once for each row; an INSERT adds several rows at once.

        The driver gives other threads a turn at every row of an ``executemany``, and needs twice the time.
        """
        bound = [self.bind(row) for row in rows]
        if not self._rows_max:
            cursor.executemany(self.text, bound)
            return
        first = 0
        while first < len(bound):
            # A power of two, so that few texts are prepared.
            size = min(self._rows_max, 1 << ((len(bound) - first).bit_length() - 1))
            cursor.execute(self._text_of(size), tuple(chain(*bound[first : first + size])))
            first += size

    def _text_of(self, rows: int) -> str:
        """Return the text of an INSERT of several rows."""
        text = self._texts.get(rows)
        if text is None:
            values = f" VALUES {', '.join([self._row] * rows)}"
            text = self._texts[rows] = self.text.replace(f" VALUES {self._row}", values)
        return text
