"""SQL views of words, derived tables, and the queries that run on them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rltrace.trace import errors, vocabulary
from rltrace.trace.errors import RltraceError, WrongUsage, did_you_mean, first_line
from rltrace.trace.read import trajectory_ids as ids
from rltrace.trace.read import trajectory_lifecycle as life
from rltrace.trace.read.row_filters import STEPS_THAT_COUNT, steps_that_count, table_of
from rltrace.trace.read.trajectory_ids import regrouped
from rltrace.trace.schema import EVENT_TABLES, SPANS, TABLES, Column, Table
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Part, Stage, word

if TYPE_CHECKING:
    import duckdb

    from rltrace.trace.read.processes import TracedProcess


RECORDED = "recorded"
_SQL = packaged_toml("trace/read/samples.toml")
_PROCESS_COLUMNS = "p.who, p.host, p.node, p.pid, p.role, p.rank"
_RENAMED = {"syncs": "p.role AS process_role"}  # a sync has a role of its own


def in_words(table: Table, rows: str) -> str:
    """CREATE VIEW statement of one table's friendly view of its `rows`, a query."""
    selected = ", ".join(map(_readable, table.columns))
    joins = "LEFT JOIN processes p USING (process)"
    for name in (column.name for column in table.columns if column.is_name):
        joins += f' LEFT JOIN names AS n_{name} ON n_{name}.id = r."{name}"'
    of_process = _PROCESS_COLUMNS.replace("p.role", _RENAMED.get(table.name, "p.role"))
    return (
        f"CREATE OR REPLACE VIEW {table.name} AS SELECT {selected}, process, {of_process} "
        f"FROM ({rows}) r {joins}"
    )


RECORDED_VIEW = f"CREATE OR REPLACE VIEW {RECORDED} AS SELECT {{}}::BIGINT AS until_ns"
"""One row: until when the run was recorded (`recorded_until`)."""

_EVENT_ROWS = " union all ".join(
    _SQL["event_rows"].format(table=name, start=moments[0], end=moments[-1])
    for name, table in EVENT_TABLES.items()
    for moments in [[column.name for column in table.columns if column.is_time]]
    if name != SPANS.name  # `span_stages` has theirs
)
DERIVED = {
    "steps": (_SQL["steps"].format(Stage=Stage),),
    "stages": (_SQL["stages"],),
    "lags": (_SQL["lags"],),
    "captured": (_SQL["captured"].format(Part=Part),),
    "grouped_trajectories": (_SQL["grouped"],),
    "raw_grouped_trajectories": (_SQL["raw_grouped"],),
    "signals": (_SQL["signals"],),
    "sample_lives": tuple(_SQL["lives"]),
    "told_uses": (_SQL["told_uses"],),
    **{name: (made,) for name, made in ids.OF_REWARDS.items()},
    "sample_verdicts": (_SQL["verdicts"],),
    "early_uses": (_SQL["early_uses"],),
    "span_stages": (_SQL["span_stages"],),
    "event_rows": (f"create or replace table event_rows as {_EVENT_ROWS}",),
    "sync_rows": (_SQL["sync_rows"],),
}
"""Statements that make tables and views of others, by name."""

IN_WORDS = (*TABLES, "steps", "stages", "lags", "captured", "grouped_trajectories")  # for people
NAMED = (*TABLES, *DERIVED, ids.NAME, ids.WEIGHTS, ids.BASELINE, RECORDED, "processes", "names")
"""What a query can name, besides the tables of codes (`raw_`)."""


def _readable(column: Column) -> str:
    name, alias = f'r."{column.name}"', f'"{column.name}"'
    if column.is_name:
        return f"n_{column.name}.text AS {alias}"
    if column.codes:
        listed = ", ".join(f"'{word(code)}'" for code in getattr(vocabulary, column.codes))
        return f"([{listed}])[nullif({name}, -1) + 1] AS {alias}"
    if column.kind in "fd":
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {alias}"
    return f"nullif({name}, -1) AS {alias}"


_ROWS, _RAW, _UNTOLD = "recorded_", "raw_", "untold"


class Tables(ABC):
    """Rows, and what SQL derives of them. A subclass says where they come from."""

    processes: list[TracedProcess]
    _untold: str = _SQL["untold"]
    _known = frozenset(prefix + table for prefix in (_ROWS, _RAW) for table in TABLES).union(
        DERIVED, (_UNTOLD, ids.NAME, ids.BASELINE, ids.JOB_BEGINS, STEPS_THAT_COUNT)
    )
    """What is made as soon as something that is asked or made names it."""

    def __init__(self) -> None:
        self._loaded: set[str] = set()
        self._ids_come_again: bool | None = None
        self._evaluations: bool | None = None  # whether there are any that generate

    @property
    @abstractmethod
    def _database(self) -> duckdb.DuckDBPyConnection:
        """Where the tables are made."""

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of one of rltrace's own queries: nobody checks that it only asks, and it is
        planned once, which of a short run is much of the time. Errors: as `sql` and `fetchall`."""
        return self._asked(query).fetchall()

    def ask_columns(self, query: str) -> dict[str, Any]:
        """The same as numpy's arrays, by column."""
        return self._asked(query).fetchnumpy()

    def ids_that_came_again(self) -> tuple[int, int]:
        """How many ids of samples came again, and the job did not: `(told apart, others)`."""
        if not self._repeats_ids("uses"):
            return 0, 0
        count = "SELECT count(DISTINCT trajectory) FROM repeated_ids WHERE in_job AND id {} -1"
        told, unclear = (self.ask(count.format(sign))[0][0] for sign in ("<>", "="))
        return told, unclear

    def _repeats_ids(self, table: str) -> bool:
        """Whether rows of a table have ids that come again (`repeated_ids`)."""
        if table not in ids.TABLES:
            return False
        if self._ids_come_again is None:
            self._make_for(f"recorded_trajectories recorded_uses early_uses {ids.JOB_BEGINS}")
            self._ids_come_again = ids.tell_samples_apart(self._database)
        return self._ids_come_again

    @abstractmethod
    def _make_rows(self, name: str) -> None:
        """Makes `recorded_<name>`: the rows of a table."""

    def _of_training(self, table: str) -> str:
        """A query of the rows of a table, of ids told apart, without what is of an evaluation."""
        rows = f"FROM {_ROWS}{table}"
        if self._repeats_ids(table):
            rows = ids.rows_told_apart(table)
        if table not in life.OF_EVALUATIONS:
            return rows
        if self._evaluations is None:
            self._evaluations = False
            if self.ask(life.ANY_EVALUATION):
                self._execute(life.MAKE_EVALUATIONS)
                self._evaluations = bool(self.ask(f"SELECT 1 FROM {life.EVALUATIONS} LIMIT 1"))
        return life.rows_of_training(table, rows) if self._evaluations else rows

    def _step_starts(self) -> list[int]:
        """When the steps began (Unix ns, in order)."""
        return [row[0] for row in self.ask("SELECT start_ns FROM steps")]

    @abstractmethod
    def _job_begins(self) -> list[int]:
        """`job_begins` of the whole run."""

    def _asked(self, query: str) -> duckdb.DuckDBPyConnection:
        """The database with the answer: take it before anything else is asked."""
        self._make_for(query)
        import duckdb

        try:
            return self._database.execute(query)
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.IOException) as error:
            raise refused(error, query, self._database) from None

    def _make_for(self, query: str) -> None:
        """Makes the tables and views that a query names, each once, in its order."""
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
        if name == ids.NAME:
            self._make_for(f"raw_trajectories raw_uses {ids.JOB_BEGINS}")
            self._database.register(name, regrouped(self._database, self._step_starts))
        elif name == ids.JOB_BEGINS:
            begins = [*enumerate([0, *self._job_begins()])]
            self._database.register(name, table_of(begins, "job", "since_ns"))
        elif name == STEPS_THAT_COUNT:
            self._make_for("raw_spans")
            self._database.register(name, steps_that_count(self._database, self.processes))
        elif name == ids.BASELINE:
            query = ids.baseline_query(self.processes)
            self._execute(f"CREATE OR REPLACE TABLE {name} AS {query}")
        elif name == _UNTOLD:
            self._execute(self._untold)
        elif name in DERIVED:
            self._execute(*DERIVED[name])
        elif name.startswith(_RAW):
            self._execute(f"CREATE OR REPLACE VIEW {name} AS {self._of_training(table)}")
        else:
            self._make_rows(table)

    def _execute(self, *statements: str) -> None:
        for statement in statements:
            self._make_for(statement)
            self._database.execute(statement)


_TABLES = sorted(name for name in NAMED if not name.startswith("raw_"))
_COLUMN = re.compile(
    r'column "([^"]+)".* (?:not found|does not exist)|not have a column named "([^"]+)"',
    re.IGNORECASE,
)
"""DuckDB finds no such column."""
_IO = "IO Error: "
_SPILLED = re.compile(r"\.tmp\b|temp_directory|create directory|No space left|disk full", re.I)
"""DuckDB has no room for what does not fit into memory."""
_EXTENSION = re.compile(r"install the required extension '(\w+)")
"""DuckDB needs an extension, which it may not install."""
NO_ROOM = (
    "this takes more memory than there is, and the working directory has no room for the rest: ask "
    "of fewer steps, or from a directory with room"
)
_ASKED = re.compile(r'(?:\bfrom\b|\bjoin\b|,)\s*(?:main\.)?"?(\w+)', re.IGNORECASE)


def failed(error: duckdb.Error) -> RltraceError | None:
    """One sentence on what DuckDB could not do for want of memory or room, because of an interrupt
    or a damaged file; None where the query is the cause."""
    import duckdb

    said = first_line(error)
    if isinstance(error, duckdb.InterruptException):
        return RltraceError("interrupted", errors.INTERRUPTED)
    if isinstance(error, duckdb.OutOfMemoryException):
        return RltraceError(NO_ROOM if "offload" in said else errors.NO_MEMORY)
    if isinstance(error, duckdb.IOException) and _SPILLED.search(said):
        return RltraceError(f"{NO_ROOM} ({said.removeprefix(_IO)})")
    is_query = isinstance(error, duckdb.IOException) and "No files found" in said
    of_files = (duckdb.IOException, duckdb.SerializationException, duckdb.InternalException)
    if (isinstance(error, of_files) and not is_query) or type(error) is duckdb.Error:
        return RltraceError(f"a file of the run is damaged: {said.removeprefix(_IO)}")
    return None


def refused(error: duckdb.Error, query: str, database: duckdb.DuckDBPyConnection) -> RltraceError:
    """One sentence on a query that did not run, with the columns, or else tables, there are."""
    import duckdb

    said = first_line(error)
    if (needed := _EXTENSION.search(said)) is not None:
        return WrongUsage(f"a query loads no extension, and this one needs {needed[1]!r}")
    if (instead := failed(error)) is not None:
        return instead
    if isinstance(error, duckdb.PermissionException):
        said = said.partition(": ")[2].partition(" - ")[0]
        return WrongUsage(f"a query reads the tables of its run and nothing else: {said}")
    missing, columns = _COLUMN.search(said), _columns(query, database)
    if isinstance(error, duckdb.BinderException) and missing and columns:
        name = missing[1] or missing[2]
        quoted = "; text stands in single quotes" if f'"{name}"' in query else ""
        near = did_you_mean(name, *(one for names in columns.values() for one in names))
        there = "; ".join(f"{table} has {', '.join(names)}" for table, names in columns.items())
        said = f"it finds no column {name!r}{near} ({there}{quoted})"
    else:
        asked = (word for word in _ASKED.findall(query) if word.lower() not in NAMED)
        near = next(filter(None, (did_you_mean(word, *_TABLES) for word in asked)), "")
        said = f"{said}{near} (tables: {', '.join(_TABLES)})"
    return WrongUsage(f"the query does not run: {said}")


def _columns(query: str, database: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The columns of each table that a query names, in its order."""
    known = {*NAMED, *(f"raw_{name}" for name in TABLES)}
    named = dict.fromkeys(word.lower() for word in _ASKED.findall(query))
    return {name: database.table(name).columns for name in named if name in known}


_GAP = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*\*/)*"
"""Blanks and comments, each in one way only, so that none of them takes for ever."""
_FIRST_WORD = re.compile(
    rf"{_GAP}(?:explain\b{_GAP}(?:(?:analyze\b|\([^)]*\)){_GAP})?)?(\w+|\()", re.IGNORECASE
)
"""Of a statement, or of the one explained, which `EXPLAIN ANALYZE` runs."""
_ASKING = (
    *("(", "select", "from", "with", "values", "table", "pivot", "unpivot"),
    *("show", "describe", "desc", "summarize", "pragma", "call"),
)
_IMPORT = re.compile(rf"\b(import){_GAP}\bdatabase\b", re.IGNORECASE)
_LOGGING = re.compile(r"\benable_logging\b", re.IGNORECASE)
"""A function that answers with rows and sets something, in a locked database of DuckDB 1, too,
where a file that it may not have aborts the process later on."""


def only_asks(query: str) -> None:
    """Errors: `RltraceError` for a statement that does not answer with rows."""
    import duckdb

    # Before DuckDB sees it: to tell its statements DuckDB 1 reads the files of an IMPORT DATABASE.
    if (bringing := _IMPORT.search(query)) is not None:
        raise _not_asking(bringing[1])
    if _LOGGING.search(query):
        raise WrongUsage("a query only reads: enable_logging changes settings")
    kinds = duckdb.StatementType
    asking = (kinds.SELECT, kinds.EXPLAIN, kinds.PRAGMA, kinds.CALL, kinds.MULTI)
    for statement in duckdb.extract_statements(query):
        found = _FIRST_WORD.match(statement.query)
        word = found[1] if found else statement.query
        try:
            asks = statement.type in asking
        except ValueError:  # DuckDB knows more kinds than its module for Python
            asks = False
        if not asks or word.lower() not in _ASKING:
            raise _not_asking(word)


def _not_asking(word: str) -> RltraceError:
    return WrongUsage(f"a query only reads: give a SELECT, not {word.upper()}")
