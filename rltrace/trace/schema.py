"""The trace's tables: their columns and types.

Every column is a fixed-width number, so a row is a handful of stores into a mapped file. Unknown is
-1 (integers) or NaN (floats): both are all ones in memory, which is how fresh space is prefilled. A
table's first column is its *marker*: a time, stored last, and 0 in space never used.
"""

from __future__ import annotations

SCHEMA_VERSION = 1

WIDTH_BYTES = {"b": 1, "i": 4, "q": 8, "f": 4, "d": 8}
"""Column types by `struct` letter: int8, int32, int64, float32, float64."""


class Column:
    """`kind` is a `struct` letter; `is_time`: monotonic ns; `codes` names an enum of the
    vocabulary; `is_name`: ids of the process's names. (A dataclass costs every process 6 ms.)"""

    __slots__ = ("codes", "is_name", "is_time", "kind", "name")

    def __init__(
        self, name: str, kind: str, is_time: bool = False, codes: str = "", is_name: bool = False
    ) -> None:
        self.name = name
        self.kind = kind
        self.is_time = is_time
        self.codes = codes
        self.is_name = is_name


class Table:
    """A table of the trace; `columns[0]` is the marker."""

    __slots__ = ("columns", "name")

    def __init__(self, name: str, *columns: Column) -> None:
        self.name = name
        self.columns = columns

    @property
    def row_bytes(self) -> int:
        return sum(WIDTH_BYTES[c.kind] for c in self.columns)

    def find(self, column: str) -> int:
        """Position of a column; -1 where the table has none of that name."""
        return next((i for i, c in enumerate(self.columns) if c.name == column), -1)


def _times(*names: str) -> list[Column]:
    return [Column(name, "q", is_time=True) for name in names]


def _numbers(kind: str, *names: str) -> list[Column]:
    return [Column(name, kind) for name in names]


SPANS = Table(
    "spans",
    *_times("start_ns", "end_ns"),
    Column("name", "i", is_name=True),
    Column("stage", "b", codes="Stage"),
    Column("phase", "b", codes="Phase"),
    *_numbers("i", "step", "version"),
    *_numbers("q", "lane", "tokens", "bytes"),
    Column("items", "i"),
)

TRAJECTORIES = Table(
    "trajectories",
    *_times("start_ns", "first_token_ns", "end_ns"),
    *_numbers("q", "trajectory", "group", "prompt", "task", "environment"),
    *_numbers("i", "first_version", "last_version", "reference_version"),
    *_numbers("i", "prompt_tokens", "response_tokens", "turns"),
    Column("env_ns", "q"),
    Column("preemptions", "i"),
    Column("finish", "b", codes="Finish"),
    *_numbers("b", "token_ids", "logprobs"),
)

REWARDS = Table(
    "rewards",
    *_times("start_ns", "end_ns"),
    Column("trajectory", "q"),
    Column("component", "i", is_name=True),
    Column("value", "d"),
    Column("outcome", "b", codes="Outcome"),
)

USES = Table(
    "uses",
    *_times("time_ns"),
    Column("trajectory", "q"),
    *_numbers("i", "step", "version"),
    Column("fate", "b", codes="Fate"),
    Column("tokens", "i"),
    *_numbers("d", "mean_log_ratio", "clip_share", "sum_w", "sum_w_squared"),
)

SYNCS = Table(
    "syncs",
    *_times("start_ns", "end_ns"),
    Column("version", "i"),
    Column("role", "b", codes="SyncRole"),
    *_numbers("q", "stall_ns", "bytes", "wire_bytes"),
    Column("buckets", "i"),
    Column("transport", "b", codes="Transport"),
    Column("checksum", "q"),
)

SAMPLES = Table(
    "samples",
    *_times("time_ns"),
    Column("counter", "i", is_name=True),
    Column("device", "i"),
    Column("value", "d"),
)

CAPTURED_TOKENS = Table(
    "captured_tokens",
    *_times("start_ns"),
    Column("trajectory", "q"),
    Column("part", "b", codes="Part"),
    *_numbers("i", "position", "token"),
)
"""What samples were made of, where that was asked for. `start_ns` is the trajectory's, the same in
all of its rows: they are shown and cut into parts together."""

EVENT_TABLES: dict[str, Table] = {
    t.name: t for t in (SPANS, TRAJECTORIES, REWARDS, USES, SYNCS, SAMPLES)
}
"""What happened; every figure is of these."""

OF_ONE_SAMPLE = (TRAJECTORIES.name, REWARDS.name, USES.name)
"""Those whose rows are about one sample."""

TABLES: dict[str, Table] = {**EVENT_TABLES, CAPTURED_TOKENS.name: CAPTURED_TOKENS}
