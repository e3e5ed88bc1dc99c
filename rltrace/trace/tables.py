"""The tables and views of a database of rows, each made when it is first asked for."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rltrace.trace import repeated_ids
from rltrace.trace.lives import LIVES, UNTOLD, VERDICTS
from rltrace.trace.one_clock import NAME as STEPS_THAT_COUNT
from rltrace.trace.one_clock import STEPS, steps_that_count
from rltrace.trace.processes import Process
from rltrace.trace.refused import refused
from rltrace.trace.regrouped import GROUPED, RAW_GROUPED, regrouped
from rltrace.trace.regrouped import NAME as REGROUPED
from rltrace.trace.signals import SAMPLE_REWARDS, reward_weights, signals
from rltrace.trace.updates import SYNC_ROWS
from rltrace.trace.views import BASES, LAGS, STAGES

if TYPE_CHECKING:
    import duckdb

SPAN_STAGES = """
create or replace table span_stages as
select process, stage, count(*) as spans, count(*) filter (end_ns < 0) as open,
       count(*) filter (end_ns >= 0 and end_ns < start_ns) as backwards,
       min(lane) as first_lane, max(lane) as last_lane
from raw_spans where start_ns > 0 group by process, stage"""
"""`spans` have begun, of which `open` have not ended and `backwards` ended before (clocks); their
lanes lie between two numbers."""

_LIVES = ("sample_lives", "told_uses")
_REGROUPED = (REGROUPED, "grouped_trajectories", "signals", *_LIVES)


class Tables(ABC):
    """Rows, and what is derived from them in SQL. A subclass says where they come from."""

    _untold = UNTOLD

    def __init__(self) -> None:
        self._loaded: set[str] = set()
        self._ids_come_again: bool | None = None

    @property
    @abstractmethod
    def processes(self) -> list[Process]:
        """The traced processes."""

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
            self._record("trajectories")
            self._record("uses")
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
        """Makes the tables and views that a query names."""
        words = set(re.findall(r"\w+", query.lower()))
        for name, tables in BASES.items():
            if name in words:
                for table in tables:
                    self._load(table)
                self._make(name)

    def _make(self, name: str) -> None:
        """Makes what is named, of tables that are there."""
        if name in ("steps", "stages"):
            self._count_steps()
        if name == "lags":
            self._database.execute(LAGS)
        if name == "sample_rewards":
            self._database.execute(SAMPLE_REWARDS)
        if name.endswith(_REGROUPED):
            self._regroup()
        if name == "grouped_trajectories":
            self._database.execute(GROUPED)
        if name in ("signals", *_LIVES):
            self._find("sample_lives", self._untold, *LIVES)
        if name == "signals":
            self._find("signals", signals(reward_weights(self.processes)))
        if name == "sample_verdicts":
            self._find(name, VERDICTS)
        if name == "span_stages":
            self._find(name, SPAN_STAGES)
        if name == "sync_rows":
            self._find(name, SYNC_ROWS)

    def _count_steps(self) -> None:
        """Makes the views of steps, once."""
        if STEPS_THAT_COUNT not in self._loaded:
            self._database.register(STEPS_THAT_COUNT, steps_that_count(self._database))
            self._find(STEPS_THAT_COUNT, STEPS, STAGES)

    def _regroup(self) -> None:
        """Tells groups apart whose ids come again, once."""
        if REGROUPED in self._loaded:
            return

        self._database.register(REGROUPED, regrouped(self._database, self._step_starts))
        self._database.execute(RAW_GROUPED)
        self._loaded.add(REGROUPED)  # at last: Ctrl-C in a notebook may end it

    def _find(self, table: str, *statements: str) -> None:
        """Makes a table that many questions are about, once."""
        if table not in self._loaded:
            for statement in statements:
                self._database.execute(statement)
            self._loaded.add(table)  # at last: Ctrl-C in a notebook may end it

    def _record(self, name: str) -> None:
        if f"recorded_{name}" not in self._loaded:
            self._make_rows(name)
            self._loaded.add(f"recorded_{name}")

    def _load(self, name: str) -> None:
        if name in self._loaded:
            return
        self._loaded.add(name)
        self._record(name)
        told = self._repeats_ids(name)
        rows = repeated_ids.told_apart(name) if told else f"FROM recorded_{name}"
        self._database.execute(f"CREATE OR REPLACE VIEW raw_{name} AS {rows}")
