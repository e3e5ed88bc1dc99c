"""The tables and views of a database of rows, each made when it is first asked for."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rltrace.trace import repeated_ids
from rltrace.trace.lives import UNTOLD
from rltrace.trace.one_clock import NAME as STEPS_THAT_COUNT
from rltrace.trace.one_clock import steps_that_count
from rltrace.trace.refused import refused
from rltrace.trace.regrouped import NAME as REGROUPED
from rltrace.trace.regrouped import regrouped
from rltrace.trace.schema import TABLES
from rltrace.trace.views import DERIVED

if TYPE_CHECKING:
    import duckdb

_ROWS, _RAW, _UNTOLD = "recorded_", "raw_", "untold"


class Tables(ABC):
    """Rows, and what is derived from them in SQL. A subclass says where they come from."""

    _untold = UNTOLD
    _known = frozenset(prefix + table for prefix in (_ROWS, _RAW) for table in TABLES).union(
        DERIVED, (_UNTOLD, REGROUPED, STEPS_THAT_COUNT)
    )
    """What can be made: as soon as something that is asked or made names it."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()
        self._ids_come_again: bool | None = None

    @property
    @abstractmethod
    def _database(self) -> duckdb.DuckDBPyConnection:
        """Where the tables are made."""

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of one of rltrace's own queries: those of `sql`, sooner. Nobody looks whether it
        only asks, and it is planned once, not first as a relation and then again to be run; of a
        short run that is much of what it takes. Errors: as `sql` and `fetchall`."""
        return self._asked(query).fetchall()

    def ask_columns(self, query: str) -> dict[str, Any]:
        """The same as numpy's arrays, by column."""
        return self._asked(query).fetchnumpy()

    def ids_that_came_again(self) -> tuple[int, int]:
        """How many ids of samples came again: `(of samples that are told apart, of others)`."""
        if not self._repeats_ids("uses"):
            return 0, 0
        count = "SELECT count(DISTINCT trajectory) FILTER (id {} -1) FROM repeated_ids"
        told, unclear = (self.ask(count.format(sign))[0][0] for sign in ("<>", "="))
        return told, unclear

    def _repeats_ids(self, table: str) -> bool:
        """Whether rows of a table have ids that come again (`repeated_ids`)."""
        if table not in repeated_ids.TABLES:
            return False
        if self._ids_come_again is None:
            self._make_for("recorded_trajectories recorded_uses")
            self._ids_come_again = repeated_ids.tell_apart(self._database)
        return self._ids_come_again

    @abstractmethod
    def _make_rows(self, name: str) -> None:
        """Makes `recorded_<name>`: the rows of a table."""

    def _step_starts(self) -> list[int]:
        """When the steps began (Unix ns, in order)."""
        return [row[0] for row in self.ask("SELECT start_ns FROM steps")]

    def _asked(self, query: str) -> duckdb.DuckDBPyConnection:
        """The database with the answer, which is to be taken before anything else is asked."""
        self._make_for(query)
        import duckdb

        try:
            return self._database.execute(query)
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.IOException) as error:
            raise refused(error, query, self._database) from None

    def _make_for(self, query: str) -> None:
        """Makes the tables and views that a query names, each once, in the order of the query."""
        for name in dict.fromkeys(re.findall(r"\w+", query.lower())):
            if name in self._known and name not in self._loaded:
                self._loaded.add(name)
                try:
                    self._make(name)
                except BaseException:  # Ctrl-C in a notebook
                    self._loaded.discard(name)
                    raise

    def _make(self, name: str) -> None:
        """Makes what is named, and before it what that is made of."""
        table = name.partition("_")[2]
        if name == REGROUPED:
            self._make_for("raw_trajectories raw_uses")
            self._database.register(name, regrouped(self._database, self._step_starts))
        elif name == STEPS_THAT_COUNT:
            self._make_for("raw_spans")
            self._database.register(name, steps_that_count(self._database))
        elif name == _UNTOLD:
            self._execute(self._untold)
        elif name in DERIVED:
            self._execute(*DERIVED[name])
        elif name.startswith(_RAW):
            rows = f"FROM {_ROWS}{table}"
            rows = repeated_ids.told_apart(table) if self._repeats_ids(table) else rows
            self._execute(f"CREATE OR REPLACE VIEW {name} AS {rows}")
        else:
            self._make_rows(table)

    def _execute(self, *statements: str) -> None:
        for statement in statements:
            self._make_for(statement)
            self._database.execute(statement)
