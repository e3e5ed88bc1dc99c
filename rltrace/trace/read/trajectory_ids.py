"""Ids of samples and groups that come again, and rewards of groups.

A loop that names groups by prompt merges the samples of many steps. A group-relative advantage is
of samples rewarded together, so an id is taken apart into rounds where the trace shows several:

- A sample begins after another of its id has been trained on, or was dropped for its advantage of
  zero: the advantage of that one's group was known by then.
- It begins after all before it have ended, and they were used in earlier steps than it and all that
  follow it: jobs may generate ahead, or begin a group under several versions.

Where samples begin in a later step (or version, where no step is known) and nobody recorded their
use, such a group is taken for one while it is no larger than others; else its group is unknown.

A sample's id is over once it has met the learner, and each id once the job began again (after a
crash, or with its next training): what comes later is of another. Where a use came before its
generation had ended, as in a job that generates ahead, the id is unknown.

Where no reward differs, a group-relative advantage (GRPO, RLOO) is zero; one of another baseline
need not be (`BASELINE`). Rewards are compared component by component: that components cancel out
(x and 1 - x) is not found out. A process may state weights of a sum (the fact `reward_weights`): a
component of weight 0 makes no signal, and a sample that another component judged has 0 of this one.
Components without a weight are compared between the samples that have them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING

from rltrace.trace.read.row_filters import OF_SAMPLES, Registered, publish, table_of
from rltrace.trace.untrusted_files import packaged_toml
from rltrace.trace.vocabulary import Fate, Outcome, Stage

if TYPE_CHECKING:
    import duckdb

    from rltrace.trace.read.processes import TracedProcess


_REGROUPED = ("trajectory", "group", "round")
NAME = "regrouped"
"""Table: `trajectory`, `group`, `round`: samples whose group is not the recorded one but another,
or -1 where it is not known. Empty where each id is of one group."""

JOB_BEGINS = "job_begins"
"""Table: `since_ns`, `job`: when the job began, as number 0, and when it began again."""

_SQL = packaged_toml("trace/read/samples.toml")
ADVANTAGE_KNOWN = (int(Fate.TRAINED), int(Fate.ZERO_ADVANTAGE))
"""Fates of samples whose group was complete."""
_SUSPECT: str = _SQL["suspect"].format(known=ADVANTAGE_KNOWN)
# Row by row, which costs a fifth of putting samples together of their rows: where nothing is found
# the samples of each group began before any ended, and before the advantage of any was known.
_CANDIDATES: str = _SQL["candidates"].format(known=ADVANTAGE_KNOWN, job_begins=JOB_BEGINS)
_USUAL_SIZE = 0.9  # quantile of the groups of which nothing is open: no larger one is left whole
_SALT = 0x9E3779B97F4A7C15
_63, _64 = 1 << 63, 1 << 64


@dataclass(slots=True)
class GroupedSample:
    """A sample of a group; moments in Unix ns (an end of -1: not seen), uses as steps. `known_ns`:
    by when its advantage was known. None: unknown."""

    trajectory: int
    group: int
    began_ns: int
    ended_ns: int
    version: int | None
    known_ns: int | None
    first_use: int | None
    last_use: int | None
    job: int  # how often the job had begun again
    used_after: int | None = None  # earliest step that used this one or a later one of its id


@dataclass(slots=True)
class _Round:
    """Samples of one group as far as is known; `open`: they may be of several."""

    number: int = 0
    samples: list[GroupedSample] = field(default_factory=list)
    ended_ns: int = 0
    version: int | None = None
    known_ns: int | None = None
    last_use: int | None = None
    open: bool = False

    def add(self, one: GroupedSample) -> None:
        self.samples.append(one)
        self.ended_ns = max(self.ended_ns, one.began_ns, one.ended_ns)
        self.version = _of(max, self.version, one.version)
        self.known_ns = _of(min, self.known_ns, one.known_ns)
        self.last_use = _of(max, self.last_use, one.last_use)


def regrouped(database: duckdb.DuckDBPyConnection, starts: Callable[[], list[int]]) -> Registered:
    """The table, of a database with `raw_trajectories`, `raw_uses` and `JOB_BEGINS`. `starts` gives
    when the steps began (Unix ns, in order), and is asked only where it matters."""
    # An id of one round of overlapping samples, as almost all are, needs no further look.
    if database.execute(_SUSPECT).fetchone() is None:
        return table_of([], *_REGROUPED)
    found = database.execute(f"{_CANDIDATES} {_SQL['of_ids_that_come_again']}").fetchall()

    def sizes() -> list[int]:
        rest = f"{_CANDIDATES} SELECT samples FROM seen WHERE again IS NOT TRUE"
        return [n for (n,) in database.execute(rest).fetchall()]

    return table_of(told_apart([GroupedSample(*row) for row in found], starts, sizes), *_REGROUPED)


def told_apart(
    samples: list[GroupedSample], starts: Callable[[], list[int]], sizes: Callable[[], list[int]]
) -> list[tuple[int, int, int]]:
    """`(trajectory, group, round)` of those whose group is not what they say. `samples` are those
    of ids that may come again, by id and start; `sizes`: how many samples the other ids have."""
    starts = cache(starts)
    rounds: list[_Round] = []
    for _, of_id in groupby(samples, lambda one: one.group):
        rounds += _rounds(list(of_id), starts)
    usual = 0  # how large nearly all groups are of which nothing is open
    if any(one.open for one in rounds):
        known = sorted(sizes() + [len(one.samples) for one in rounds if not one.open])
        usual = known[int(_USUAL_SIZE * (len(known) - 1))] if known else 0
    return [
        (sample.trajectory, -1 if unknown else _key(sample.group, one.number), one.number)
        for one in rounds
        for unknown in [one.open and len(one.samples) > usual]
        if unknown or one.number
        for sample in one.samples
    ]


def _rounds(samples: list[GroupedSample], starts: Callable[[], list[int]]) -> Iterator[_Round]:
    """The rounds of one id, whose samples come in the order in which they began."""
    later: int | None = None
    for one in reversed(samples):
        later = one.used_after = _of(min, later, one.first_use)
    now = _Round()
    for one in samples:
        begins = now.samples and _begins(now, one, starts)
        if begins:
            yield now
            now = _Round(now.number + 1)
        elif begins is None:
            now.open = True
        now.add(one)
    yield now


def _begins(now: _Round, one: GroupedSample, starts: Callable[[], list[int]]) -> bool | None:
    """Whether a round begins with a sample; None: it may."""
    known = now.known_ns is not None and now.known_ns < one.began_ns
    if known or now.samples[-1].job != one.job:
        return True
    if one.began_ns < now.ended_ns:
        return False
    if now.last_use is not None and one.used_after is not None:
        return now.last_use < one.used_after
    if steps := starts():
        later = bisect_right(steps, one.began_ns) > bisect_right(steps, now.ended_ns)
    elif now.version is not None and one.version is not None:
        later = one.version > now.version
    else:
        later = False
    return None if later else False


def _key(group: int, number: int) -> int:
    """An id for a later round: the recorded one, and another number for each round."""
    mixed = (group ^ number * _SALT) % _64
    signed = mixed - _64 if mixed >= _63 else mixed
    return signed if signed != -1 else number


def _of(which: Callable[[int, int], int], a: int | None, b: int | None) -> int | None:
    """The smaller or larger of two, of which one may be unknown."""
    return b if a is None else a if b is None else which(a, b)


TABLES = {**dict.fromkeys(OF_SAMPLES, "start_ns"), "uses": "time_ns"}
"""The tables with ids of samples, and the moment that says which sample of an id a row is of."""

_ENDS: str = _SQL["ends_of_ids"]
_FIND: str = _SQL["repeated_ids"].format(
    ids=_ENDS.format("DISTINCT trajectory", ""), job_begins=JOB_BEGINS
)


def tell_samples_apart(database: duckdb.DuckDBPyConnection) -> bool:
    """Whether an id comes again; then it makes the table `repeated_ids`."""
    if database.execute(_ENDS.format("1", "LIMIT 1")).fetchone() is None:
        return False
    database.execute(_FIND)
    return True


def rows_told_apart(table: str) -> str:
    """A query of the rows of a table, with the ids of samples told apart."""
    return (
        "SELECT t.* REPLACE (coalesce(r.id, t.trajectory) AS trajectory) "
        f"FROM recorded_{table} t ASOF LEFT JOIN repeated_ids r "
        f"ON t.trajectory = r.trajectory AND t.{TABLES[table]} >= r.since_ns"
    )


WEIGHTS = "reward_weights"
"""The fact, and the table of it: `component` (its name), `weight`."""

GIVEN_NAN = f"""(outcome = {int(Outcome.OK)} and case when isnan(value)
    then value::bit <> '{"1" * 64}'::bit else false end)"""
"""SQL over `raw_rewards`: a verdict that did not fail is a NaN of the job's."""


def publish_weights(
    database: duckdb.DuckDBPyConnection, processes: Iterable[TracedProcess]
) -> None:
    """Makes the table `WEIGHTS`; a component on which processes disagree has none."""
    found: dict[str, set[float]] = {}
    for process in processes:
        for component, weight in (process.facts.get(WEIGHTS) or {}).items():
            name = component.encode("utf-8", "replace").decode()  # as names are read
            found.setdefault(name, set()).add(float(weight))
    known = {name: weights.pop() for name, weights in found.items() if len(weights) == 1}
    publish(database, WEIGHTS, {"component": "VARCHAR", "weight": "DOUBLE"}, known.items())


ADVANTAGE = "advantage"
"""The fact: the estimator of advantages, by its name in the framework."""
BASELINE = "advantage_baseline"
"""The table of it, one row: `of_group`, whether samples of equal reward in a group have no
advantage; NULL where an estimator was stated that is not known here."""


def baseline_query(processes: Iterable[TracedProcess]) -> str:
    """The table `BASELINE`. Where no process states an estimator, it is a critic's if values were
    seen, else taken to be of the group."""
    stated = (process.facts.get(ADVANTAGE) for process in processes)
    if (name := next((one for one in stated if isinstance(one, str)), None)) is None:
        seen = f"SELECT 1 FROM span_stages WHERE stage = {int(Stage.VALUE)}"
        return f"SELECT NOT EXISTS ({seen}) AS of_group"
    name = name.lower().replace("++", "_plus_plus").replace("-", "_")
    baselines = dict.fromkeys(_SQL["of_group"], "true") | dict.fromkeys(_SQL["of_others"], "false")
    return f"SELECT {baselines.get(name, 'NULL')}::BOOLEAN AS of_group"


_WEIGHTS = f"""weights AS (
    SELECT n.id AS component, weight FROM {WEIGHTS} w JOIN names n ON n.text = w.component)"""

OF_REWARDS: dict[str, str] = {
    name: _SQL[name].format(weights=_WEIGHTS, given_nan=GIVEN_NAN)
    for name in ("judged_rows", "group_signals", "group_samples", "sample_rewards")
}
"""Tables and views of rewards. A sample's is the sum of its components times their weights (1: none
stated)."""
