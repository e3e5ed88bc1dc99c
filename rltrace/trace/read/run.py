"""A run, opened for reading: `open_run(path)` gives tables and views in DuckDB.

Times are Unix nanoseconds on one time line for all nodes (`alignment`). A table is loaded when it
is first asked for; a compacted run is read from its Parquet files and nothing is loaded at all.
"""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from rltrace.trace import run_dir
from rltrace.trace.compact.stored_rows import Stored, pattern_of, quoted, reading, unreadable
from rltrace.trace.errors import WrongUsage
from rltrace.trace.liveness import OUTLIVED, command_s, described_alive
from rltrace.trace.read import bounds
from rltrace.trace.read.bounds import EVER_NS
from rltrace.trace.read.clock_alignment import NodeClock, read_reach
from rltrace.trace.read.row_filters import Narrowed, Range, job_begins
from rltrace.trace.read.run_files import RunFiles
from rltrace.trace.read.sql_views import (
    IN_WORDS,
    RECORDED,
    RECORDED_VIEW,
    Tables,
    in_words,
    only_asks,
    refused,
)
from rltrace.trace.read.trajectory_ids import publish_weights
from rltrace.trace.schema import TABLES

if TYPE_CHECKING:
    import duckdb

    from rltrace.trace.read.processes import TracedProcess

_ROWS_OF_THREAD = 2_000_000  # another thread has to find more work than it makes
SPILLED: list[str] = []  # where this process's databases write what memory has no room for


def open_run(path: str | Path) -> OpenedRun:
    """Opens a run directory. Errors: `RltraceError` when it is none, or none that this version
    reads."""
    return OpenedRun(Path(path))


def _relation(view: str) -> cached_property[duckdb.DuckDBPyRelation]:
    def relation(run: OpenedRun) -> duckdb.DuckDBPyRelation:
        return run.sql(f"FROM {view}")

    relation.__doc__ = f"The `{view}` view: `.df()`, `.pl()`, `.arrow()` are DuckDB's own."
    return cached_property(relation)


class OpenedRun(Tables):
    """A run's metadata, processes and tables.

    A process whose file is missing is among `processes` once its rows are read. `problems` lists,
    as dicts with "what" and "target", the files that could not be read whole, as far as they were
    read, and everything that the traced processes could not record. `range` is the range of time
    that it was narrowed to; `cut_short`: to what was recorded before a process stopped recording.
    `goes_on` is whether it was still recorded when it was opened (None: nobody here can tell),
    which was at `opened_ns` (Unix ns); `reach` is until when it is known where it was brought from
    a URL and more is to come.
    """

    _known = Tables._known.union(TABLES, [RECORDED])

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.meta, self.goes_on = described_alive(path)
        self._files = RunFiles(path, self.meta)
        self.processes = self._files.processes
        self.problems = self._files.problems
        self.opened_ns = self._files.now_ns()
        if self.goes_on:
            self._files.as_of_ns = self.opened_ns
        self.reach = read_reach(path, self._files.clocks)
        me = weakref.proxy(self)  # a run that nobody holds any more frees its database at once
        self._stored = Stored(self._files, lambda: me._database)
        self.command_s = command_s(self.meta)
        self._outlived = bool(self.meta.get(OUTLIVED))
        self.range: Range | None = None
        self.cut_short = False

    @property
    def is_compacted(self) -> bool:
        """Whether the tables come from Parquet files, all of them whole."""
        return self._files.manifest is not None and not self._files.rest

    @cached_property
    def is_short(self) -> bool:
        """Whether its rows need one thread, and its answers no pyarrow to stream them."""
        return self._stored.about_rows() < _ROWS_OF_THREAD

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The in-memory database, with every table and view of words in it."""
        self._make_for(" ".join(IN_WORDS))
        return self._database

    def sql(self, query: str) -> duckdb.DuckDBPyRelation:
        """Runs a query over the tables and views of docs/reference/trace-format.md. Errors:
        `RltraceError` for a query that does not run (`refused`), and for a statement that is no
        question: nothing is written, and no setting changed."""
        self._make_for(query)
        import duckdb

        try:
            only_asks(query)
            relation = self._database.sql(query)
        except duckdb.Error as error:
            raise refused(error, query, self._database) from None
        if relation is None:
            raise WrongUsage("the query returns no rows: give a SELECT")
        return relation

    def ask_batches(self, query: str) -> Iterator[list[NDArray[Any]]]:
        """The columns of an answer as numpy's, some thousand rows at a time. Errors: as `sql`."""
        if self.is_short:
            yield [*self.ask_columns(query).values()]
            return
        import pyarrow as pa

        for batch in pa.RecordBatchReader.from_stream(self.sql(query)):
            yield [column.to_numpy() for column in batch.columns]

    def add_function(self, name: str, function: Callable[[str], int]) -> None:
        """Lets queries call a function of a text that gives a whole number."""
        self._database.create_function(name, function, ["VARCHAR"], "BIGINT")

    def lock(self) -> None:
        """From now on queries read this run and no other file, load no extension, and can change
        neither: for questions from somebody else. What spills to disk still does."""
        manifest = self._files.manifest
        own = [] if manifest is None else manifest.files
        paths = ", ".join(map(quoted, {*own, *map(pattern_of, own)}))
        self._database.execute(f"SET allowed_paths = [{paths}]")
        self._database.execute("SET enable_external_access = false")
        self._database.execute("SET lock_configuration = true")

    def step_rows(self) -> list[tuple[int, int, int, int]]:
        """All spans of steps, `(step, start_ns, end_ns or -1, process)`, by their start."""
        return self._step_rows

    @cached_property
    def _step_rows(self) -> list[tuple[int, int, int, int]]:
        with reading(self.path / run_dir.PARQUET):
            rows = f"{' UNION ALL '.join(self._stored.steps())} ORDER BY start_ns"
            steps: list[tuple[int, int, int, int]] = self._database.execute(rows).fetchall()
        return [step for step in steps if None not in step and 0 < step[1] < EVER_NS]

    def narrow(self, to: Range, cut_short: bool = False) -> None:
        """From now on the tables hold the rows of a range of time, and `meta` says that the run
        ended with it; where it was only `cut_short`, how it ended and when is still of it. To be
        called before anything else is asked."""
        self.range, self.cut_short = to, cut_short
        ended = self.meta.get("end_real_ns")
        if not to.goes_on and not cut_short:  # how the command ended says nothing of it: it went on
            over = {"end_real_ns": to.until_ns, "exit_code": None, "command_pid": None}
            self.meta = {**self.meta, **over}
        elif isinstance(ended, int):
            self.meta = {**self.meta, "end_real_ns": max(ended, to.since_ns)}

    def know_only(self, processes: Iterable[TracedProcess]) -> None:
        """From now on `processes` are these, and what they say of themselves is all that is known;
        the tables keep their rows."""
        self.processes = list(processes)
        publish_weights(self._database, self.processes)

    @property
    def since_ns(self) -> int:
        """When the range begins that the run was narrowed to (Unix ns); 0 for all of it."""
        return 0 if self.range is None else self.range.since_ns

    @property
    def until_ns(self) -> int | None:
        """When that range ends; None where it has no end."""
        return None if self.range is None or self.range.goes_on else self.range.until_ns

    @property
    def begins_ns(self) -> int | None:
        """When what is shown begins (Unix ns): with the run, or with the range that it was narrowed
        to. None: nobody knows."""
        started = self.meta.get("start_real_ns")
        begins = [started] if isinstance(started, int) else []
        return max(begins + [self.since_ns] * (self.since_ns > 0), default=None)

    @cached_property
    def lasted_s(self) -> float | None:
        """What the whole run lasted, whatever is shown, in seconds; None while that is not known:
        `command_s`, or until the last that was recorded, where the job outlived its command."""
        if self.command_s is None or not self._outlived:
            return self.command_s
        whole = self if self.range is None else open_run(self.path)
        return max(self.command_s, (recorded_until(whole) - int(whole.meta["start_real_ns"])) / 1e9)

    @property
    def shown_s(self) -> float | None:
        """How much of what it lasted is shown, in seconds; None: all, or nobody knows."""
        begins_ns, ended = self.begins_ns, self.meta.get("end_real_ns")
        if self.lasted_s is None or begins_ns is None or not isinstance(ended, int):
            return None
        if self._outlived and self.until_ns is None:
            ended = int(self.meta["start_real_ns"]) + round(self.lasted_s * 1e9)
        shown_s = max(0, ended - begins_ns) / 1e9
        return shown_s if shown_s < self.lasted_s else None

    def interrupt(self) -> None:
        """Ends the query that another thread is waiting for."""
        self._database.interrupt()

    def clock_of(self, node: str) -> NodeClock | None:
        """How a node's monotonic clock maps to the run's time; None where it is not known."""
        return self._files.clocks.get(node)

    def rows(self, table: str) -> int:
        """Number of stored rows of a table, of the whole run."""
        manifest = self._files.manifest
        compacted = 0 if manifest is None else manifest.rows[table]
        return compacted + (len(self._stored.columns(table)[0]) if table in self._files.rest else 0)

    def has_rows(self, table: str) -> bool:
        """Whether a table has any row; of what is in segments only the first is looked for."""
        manifest = self._files.manifest
        if manifest is not None and manifest.rows[table]:
            return True
        return table in self._files.rest and self._files.has_rows(table)

    def rows_of_processes(self, table: str) -> Counter[int]:
        """About how many rows of a table each process stored, of the whole run, as far as they are
        still there; what is in segments is not read for it."""
        if not self.is_compacted:
            return self._files.rows_of_processes(table)
        query = f"SELECT process, count(*) FROM raw_{table} GROUP BY process"
        return Counter(dict(self.ask(query)))

    spans = _relation("spans")
    trajectories = _relation("trajectories")
    rewards = _relation("rewards")
    uses = _relation("uses")
    syncs = _relation("syncs")
    samples = _relation("samples")

    @cached_property
    def _database(self) -> duckdb.DuckDBPyConnection:
        """In memory; made on demand, since duckdb takes 0.1 s."""
        import duckdb

        threads = min(os.cpu_count() or 1, 1 + self._stored.about_rows() // _ROWS_OF_THREAD)
        database = duckdb.connect(config={"threads": threads, **bounds.of_duckdb()})
        # What spills goes where queries can read (`lock`): a name that leads nowhere else.
        SPILLED.append(f".tmp-{os.urandom(8).hex()}")
        database.execute(f"SET temp_directory = '{SPILLED[-1]}'")
        database.execute("SET enable_progress_bar = false")  # it goes to where the answer goes
        with suppress(duckdb.Error):  # what a question of a long run has freed is given back soon
            database.execute("SET allocator_background_threads = true")
            database.execute("SET allocator_bulk_deallocation_flush_threshold = '32MB'")
            # Its threads read on while somebody here is at work on what they read before.
            database.execute("SET streaming_buffer_size = '32MB'")
        self._stored.publish(database)
        publish_weights(database, self.processes)
        return database

    @cached_property
    def _narrowed(self) -> Narrowed | None:
        if self.range is None:
            return None
        return Narrowed(self._database, self._stored, self.range, self._job_begins())

    def _job_begins(self) -> list[int]:
        return job_begins(self._step_rows, self.processes)

    def _make(self, name: str) -> None:
        import duckdb

        if name == RECORDED:
            self._execute(RECORDED_VIEW.format(recorded_until(self)))
        elif name in TABLES:
            self._execute(in_words(TABLES[name], self._of_training(name)))
        else:
            try:
                super()._make(name)
            except duckdb.Error as error:
                kind, _, table = name.partition("_")
                if kind not in ("raw", "recorded") or table not in TABLES:
                    raise
                raise unreadable(self.path / run_dir.PARQUET / table, error) from None

    def _make_rows(self, name: str) -> None:
        if self._narrowed is not None:
            self._narrowed.make(name)
        else:
            rows = self._stored.near(name)
            self._database.execute(f"CREATE OR REPLACE VIEW recorded_{name} AS {rows}")


def recorded_until(run: OpenedRun) -> int:
    """Until when there was a recording, Unix ns: the run's end where it is known, or what processes
    of the job recorded after it, the moment at which it was opened where the job goes on, else the
    last event, or until when all that was recorded has come from its nodes; of a part of the run
    its end. The agent reads a last time when all is over, which makes no run longer."""
    if run.until_ns is not None:
        return run.until_ns
    ended = run.meta.get("end_real_ns")
    if run.goes_on and ended is None:
        return run.opened_ns
    last = ended if isinstance(ended, int) else run.reach.until_ns
    rows = "select last_ns from span_stages union all select last_ns from event_rows"
    if isinstance(ended, int):
        agents = [str(process.number) for process in run.processes if process.role == "agent"]
        rows += f" where of_table <> 'samples' or process not in ({', '.join(['-1', *agents])})"
    ((found,),) = run.ask(f"select coalesce(max(last_ns), 0) from ({rows})")
    return max(last, int(found))
