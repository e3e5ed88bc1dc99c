"""The public recording API, as a program uses it and as the reading half sees it; and phases, spans
that follow each other without a gap."""

from __future__ import annotations

from pathlib import Path

import pytest

import rltrace
from rltrace.hooks.span_api import Phases
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.hooks import MOST_PROBLEMS, Recorder, identify
from rltrace.testing.inside.hooks import recorder as recording
from tests.conftest import Record
from tests.hooks.conftest import Rows
from tests.patience import until


def test_nothing_happens_without_a_run() -> None:
    with rltrace.step(1), rltrace.span("rollout") as span:
        span.set(tokens=4)
        with rltrace.trajectory("a", prompt_token_ids=[1]) as trajectory:
            trajectory.first_token()
            trajectory.finish("length", response_tokens=3, response_token_ids=[1])
        with rltrace.reward("a") as reward:
            reward.set(value=1.0)
        rltrace.use("a")
        rltrace.counter("queue", 3)
        with rltrace.weight_update(1):
            pass
    rltrace.step(2).end()
    with pytest.raises(KeyError, match="mine"), rltrace.span("rollout"):
        raise KeyError("mine")


def test_rows_carry_every_column(record: Record, rows: Rows) -> None:
    record("""
wide = {"step": 7, "version": 3, "tokens": 5, "bytes": 2**40, "items": 9}
with rltrace.span("sync", "broadcast", "transfer", **wide): pass
rltrace.counter('queue', 2.5); rltrace.counter('gpu', 1, device=3)
""")
    columns = "stage, name, phase, step, version, tokens, bytes, items, end_ns > start_ns"
    assert rows(f"SELECT {columns} FROM spans") == [
        ("sync", "broadcast", "transfer", 7, 3, 5, 2**40, 9, True)
    ]
    found = rows("SELECT counter, value, device FROM samples")
    assert found == [("queue", 2.5, None), ("gpu", 1.0, 3)]


def test_spans_belong_to_the_step_that_they_are_in(record: Record, rows: Rows) -> None:
    record("""
for n in range(2):
    with rltrace.step(n):
        with rltrace.span("rollout"):
            with rltrace.span("reward", "math"): pass
with rltrace.span("checkpoint"): pass
for n in range(2, 4):  # at the top of a loop: each ends the one before
    rltrace.step(n)
    with rltrace.span("train"): pass
""")
    of_steps = [(stage, n) for n in range(2) for stage in ("step", "rollout", "reward")]
    of_steps += [("checkpoint", None), ("step", 2), ("train", 2), ("step", 3), ("train", 3)]
    assert rows("SELECT stage, step FROM spans ORDER BY start_ns") == of_steps
    within = (
        "SELECT i.step FROM spans i JOIN spans o ON i.start_ns >= o.start_ns AND "
        "i.end_ns <= o.end_ns WHERE i.stage = 'reward' AND o.stage = 'rollout' ORDER BY 1"
    )
    assert rows(within) == [0, 1]
    assert rows("SELECT step, seconds > 0 FROM steps") == [(n, True) for n in range(4)]


LEAVES = """
import asyncio
async def main():
    for n in range(3):
        try:
            {with_} rltrace.step(n):
                if n == 1: raise ValueError
        except ValueError: pass
asyncio.run(main())
"""
DIES = """
for n in range(3):
    rltrace.step(n)
    if n == 2: raise ValueError
"""


@pytest.mark.parametrize(
    ("loop", "failed"),
    [
        (LEAVES.replace("{with_}", "with"), 1),
        (LEAVES.replace("{with_}", "async with"), 1),
        (DIES, 2),
    ],
)
def test_a_step_that_an_exception_leaves_has_no_end(
    run_path: Path, record: Record, rows: Rows, loop: str, failed: int
) -> None:
    record(loop, check=False)
    assert rows("SELECT step, end_ns IS NULL FROM steps") == [(n, n == failed) for n in range(3)]
    told = {one["what"]: one for one in rltrace.open_run(run_path).problems}
    assert told["step-failed"]["target"] == str(failed)
    assert {one["detail"] for one in told.values()} == {"ValueError in generated code"}
    assert set(told) <= {"step-failed", "process-failed"}


def test_every_kind_of_function_can_be_decorated(record: Record, rows: Rows) -> None:
    out = record("""
import asyncio, inspect
@rltrace.span("reward", "plain", tokens=7)
def plain(x): return x + 1
@rltrace.span("env", "coroutine")
async def coroutine(x): await asyncio.sleep(0); return x + 1
@rltrace.span("rollout", "generator")
def generator(n):
    got = yield from range(n)
    return "done"
@rltrace.span("rollout", "agenerator")
async def agenerator(n):
    for i in range(n): yield i
assert inspect.iscoroutinefunction(coroutine) and inspect.isgeneratorfunction(generator)
assert inspect.isasyncgenfunction(agenerator) and plain.__name__ == "plain"
async def main():
    return [i async for i in agenerator(3)], await coroutine(1)
print(plain(1), plain(2), asyncio.run(main()), list(generator(3)))
try:
    plain("x")
except TypeError: print("raised")
""").stdout
    assert out == "2 3 ([0, 1, 2], 2) [0, 1, 2]\nraised\n"
    assert rows("SELECT sum(tokens), count(bytes) FROM spans") == [(21, 0)]
    counted = rows("SELECT name, stage, count(*), count(end_ns) FROM spans GROUP BY 1, 2")
    assert sorted(counted) == [
        ("agenerator", "rollout", 1, 1),
        ("coroutine", "env", 1, 1),
        ("generator", "rollout", 1, 1),
        ("plain", "reward", 3, 3),
    ]


def test_asyncio_tasks_are_lanes_of_their_own(record: Record, rows: Rows) -> None:
    record("""
import asyncio
from rltrace.testing.inside.hooks import watch_asyncio
watch_asyncio()
async def one(i):
    with rltrace.span("rollout", items=i):
        await asyncio.sleep(0.01)
async def main():
    await asyncio.gather(*[one(i) for i in range(3)])
asyncio.run(main())
with rltrace.span("train"): pass
""")
    assert rows("SELECT count(DISTINCT lane) FROM spans") == [4]


def test_a_value_that_does_not_fit_costs_its_column_only(
    run_path: Path, record: Record, rows: Rows
) -> None:
    said = record("""
class Tensor:
    def __int__(self): return 12
    def __eq__(self, other): return other == 12
with rltrace.span("rollout", tokens="many", items=3): pass
with rltrace.span("reward", phase="nonsense"): pass
with rltrace.span("train", step=2**40, bytes=5.0): pass
with rltrace.span("env", tokens=Tensor()): pass
with rltrace.span("value") as s: s.set(tokens=1.5, items=4.0)
with rltrace.span(["rollout"]): pass
rltrace.counter("queue", "full")
rltrace.reward("a", value="good")
rltrace.use("b", "lost", tokens="x")
rltrace.step("one")
""").stderr
    columns = "stage, step, tokens, bytes, items"
    found = rows(f"SELECT {columns} FROM spans WHERE end_ns > 0 ORDER BY start_ns")
    assert found == [
        ("rollout", None, None, None, 3),
        ("reward", None, None, None, None),
        ("train", None, None, 5, None),
        ("env", None, 12, None, None),
        ("value", None, None, None, 4),
        ("other", None, None, None, None),
    ]
    assert rows("SELECT value, outcome FROM rewards") == [(None, "ok")]
    assert rows("SELECT fate, tokens FROM uses") == [(None, None)]
    problems = rltrace.open_run(run_path).problems
    assert {p["target"] for p in problems if p["what"] == "not-recorded"} >= {"tokens", "step"}
    assert {p["target"] for p in problems if p["what"] == "unknown-word"} == {"nonsense", "lost"}
    assert len(said.splitlines()) == 3  # two words and a stage that are none


def test_odd_values_are_named_and_counted(run_path: Path, record: Record, rows: Rows) -> None:
    record("""
for _ in range(3):
    with rltrace.step("x"), rltrace.span("train", tokens=-5): pass
for _ in range(2):
    with rltrace.weight_update("v1"): pass
for i in range(100):
    rltrace.use(i, tokens=float("nan"))
rltrace.use("a", tokens=-1)
""")
    assert rows("SELECT tokens FROM spans") == [None] * 3
    assert rows("SELECT count(*), count(tokens) FROM uses") == [(101, 0)]
    said = {
        (problem.targets, problem.count, problem.at_least, *problem.detail.split()[:2])
        for problem in summarize(rltrace.open_run(run_path)).coverage.problems
    }
    assert said >= {
        (("rltrace.step",), 3, False, "a", "str"),
        (("version",), 2, False, "a", "str"),
        (("tokens",), 64, True, "nan", "(float)"),
        (("spans.tokens",), 1, False, "3", "can"),
    }


def test_of_an_object_in_the_place_of_a_word_or_number_its_kind_is_kept(
    run_path: Path, record: Record, rows: Rows
) -> None:
    """It may be a completion, and as long as all of them, and nothing of its own is called:
    neither text nor time is ours."""
    said = record("""
class Output:
    def __str__(self): raise SystemExit("SEKRET")
    __repr__ = __str__
class Loud(float):
    def __repr__(self): return "SEKRET " * 100
class Silent:
    __str__ = __repr__ = __hash__ = __bool__ = Output.__str__
it = Output()
with rltrace.span(it), rltrace.span("rollout", it), rltrace.span(["SEKRET"]): pass
with rltrace.span("rollout", 7): pass
rltrace.trajectory("a").finish(it)
rltrace.use("a", it)
rltrace.counter(it, 1.0)
with rltrace.span("train", "odd", tokens=[it] * 1000, items="SEKRET", bytes=it): pass
with rltrace.span("train", "odd", version=Loud("nan")): pass
rltrace.use("a", "a word " * 100)
for odd in (["stop"], {}, 10**5000, 3, b"ok", Silent()):
    rltrace.trajectory("b").finish(odd, response_tokens=3)
    rltrace.reward("b", 1.0, outcome=odd)
    rltrace.use("b", odd, tokens=3)
    with rltrace.weight_update(1, role=odd, transport=odd): pass
""")
    assert said.returncode == 0
    kind = "a object"  # a class that `python -c` has made has no name of its own here
    names = rows("SELECT name FROM spans WHERE name <> 'odd' ORDER BY start_ns")
    assert names == [kind, kind, "a list of length 1", "7"]
    run = rltrace.open_run(run_path)
    told = {problem.targets: problem.detail for problem in summarize(run).coverage.problems}
    assert told[("tokens",)].startswith("a list of length 1000 ")
    assert told[("items",)].startswith("a str of length 6 ")
    assert told[("bytes",)].startswith(f"{kind} ")
    assert max(map(len, told.values())) < 150
    assert all(len(str(problem.get("target"))) <= 60 for problem in run.problems)
    kept = b"".join(file.read_bytes() for file in run_path.rglob("*") if file.is_file())
    assert b"SEKRET" not in kept
    assert rows("SELECT finish FROM trajectories WHERE response_tokens = 3") == [None] * 6
    assert rows("SELECT value, outcome FROM rewards") == [(1.0, None)] * 6
    assert rows("SELECT fate FROM uses WHERE tokens = 3") == [None] * 6
    assert rows("SELECT version, role, transport FROM syncs") == [(1, None, None)] * 6


def test_a_step_that_is_no_whole_number_from_0_on_is_none(
    run_path: Path, record: Record, rows: Rows
) -> None:
    done = record("""
odd = [7.5, float("nan"), float("inf"), [1, 2], None, "7.5", -1, -2.0]
for step in (3, *odd, *odd, 4.0):
    with rltrace.step(step):
        with rltrace.span("train"): pass
print("fine")
""")
    assert (done.stdout, done.stderr) == ("fine\n", "")
    assert rows("SELECT step FROM steps") == [3, 4]
    steps = rows("SELECT step FROM spans WHERE stage = 'train' ORDER BY start_ns")
    assert steps == [3, *[None] * 16, 4]
    (problem,) = summarize(rltrace.open_run(run_path)).coverage.problems
    assert (problem.targets, problem.count) == (("rltrace.step",), 16)


def test_a_job_that_is_always_wrong_does_not_fill_the_terminal(record: Record, rows: Rows) -> None:
    said = record("""
for _ in range(3):
    with rltrace.span("frobnicate"): pass
for i in range(500):
    with rltrace.span(f"stage {i}"): pass
    rltrace.use(i, f"fate {i}")
""").stderr
    assert len(said.splitlines()) == 2 * MOST_PROBLEMS
    assert said.count("frobnicate") == 1
    found = rows("SELECT count(*), count_if(name = 'frobnicate') FROM spans WHERE stage = 'other'")
    assert found == [(503, 3)]


def test_trajectories_rewards_and_uses_meet_by_id(record: Record, rows: Rows) -> None:
    record("""
with rltrace.weight_update(5, bytes=100, transport="tcp"): pass
made = rltrace.trajectory("t/1", group="g", prompt=12, version=3, prompt_tokens=9, token_ids=True)
with made as t:
    t.first_token()
    t.finish("length", response_tokens=40)
with rltrace.reward("t/1", component="tests") as r: r.set(value=0.25)
rltrace.use("t/1", step=2, tokens=40, sum_w=1.5)
rltrace.use("t/2", "zero-advantage", version=5)
""")
    assert rows(
        "SELECT trajectory, prompt, first_version, last_version, prompt_tokens, response_tokens, "
        "finish, token_ids, logprobs, first_token_ns BETWEEN start_ns AND end_ns FROM trajectories",
    ) == [(identify("t/1"), identify("12"), 3, None, 9, 40, "length", 1, None, True)]
    assert rows("SELECT value, component, outcome FROM rewards") == [(0.25, "tests", "ok")]
    assert rows("SELECT lag, fate, tokens FROM lags ORDER BY fate") == [
        (2, "trained", 40),
        (None, "zero-advantage", None),
    ]
    assert rows("SELECT version, role, transport, bytes, wire_bytes FROM syncs") == [
        (5, "source", "tcp", 100, None)
    ]


def test_a_block_that_raises_marks_its_row(record: Record, rows: Rows) -> None:
    record("""
for make in (rltrace.trajectory, rltrace.reward, rltrace.weight_update):
    try:
        with make(9): raise ValueError("theirs")
    except ValueError: pass
assert recorder.active().version == -1
""")
    assert rows("SELECT finish, end_ns > 0 FROM trajectories") == [("error", True)]
    assert rows("SELECT outcome, value FROM rewards") == [("error", None)]
    assert rows("SELECT end_ns > 0 FROM syncs") == [True]


def test_ids_are_the_same_in_every_process() -> None:
    assert identify(7) == identify("7") == identify(b"7")
    assert identify("a") != identify("b")
    assert all(-(2**63) <= identify(i) < 2**63 for i in range(1000))


def test_a_program_can_start_a_run_itself(tmp_path: Path, record: Record) -> None:
    out = record(
        f"""
recorder.stop()
before = dict(os.environ)
with rltrace.span("train"): pass
path = rltrace.start({str(tmp_path / "own")!r})
assert rltrace.start() == path and os.environ["RLTRACE_RUN"] == str(path)
import subprocess
child = "import rltrace\\nwith rltrace.span('reward'): pass"
subprocess.run([sys.executable, "-c", child], check=True)
with rltrace.step(0), rltrace.span("train"): pass
rltrace.stop()
assert dict(os.environ) == before
with rltrace.span("train"): pass
print(path)
"""
    ).stdout.strip()
    run = rltrace.open_run(out)
    stages = run.sql("SELECT stage FROM spans ORDER BY 1").fetchall()
    assert stages == [("reward",), ("step",), ("train",)]
    assert run.meta["exit_code"] == 0
    # The agent is another process, and may come up late.
    until(lambda: "agent" in {process.role for process in rltrace.open_run(out).processes})


PHASES = ("set up", "send", "the others")


OF_PHASES = (
    f"SELECT name, start_ns, end_ns FROM spans WHERE name IN {PHASES} OR name = 'whole' "
    "ORDER BY start_ns, end_ns DESC"
)


def cut_short() -> None:
    """An exception leaves the second phase."""
    with Phases() as phases:
        phases.begin("sync", "set up")
        phases.begin("sync", "send")
        raise KeyError("mine")


def test_a_phase_begins_at_the_reading_at_which_the_one_before_ends(
    recorder: Recorder, rows: Rows
) -> None:
    """The first one where the whole began."""
    for _ in range(100):
        with rltrace.span("sync", "whole") as whole, Phases(whole.start_ns) as phases:
            for name in PHASES:
                phases.begin("sync", name)
                with rltrace.span("wait", "inside"):
                    sorted(range(1000))
    found = rows(OF_PHASES)
    assert [name for name, *_ in found] == ["whole", *PHASES] * 100
    for at in range(0, len(found), 4):
        (_, whole_ns, end), (_, began, to), (_, then, on), (_, last, ended) = found[at : at + 4]
        assert whole_ns == began < to == then < on == last < ended <= end


def test_an_exception_ends_the_phase_that_it_leaves_and_passes(
    recorder: Recorder, rows: Rows
) -> None:
    with pytest.raises(KeyError, match="mine"):
        cut_short()
    (_, _, to), (_, then, ended) = rows(OF_PHASES)
    assert to == then < ended


def test_a_run_that_stops_between_two_phases_has_the_first(recorder: Recorder, rows: Rows) -> None:
    with Phases() as phases:
        phases.begin("sync", "set up")
        recording.stop()
        phases.begin("sync", "send")
    ((name, began, ended),) = rows(OF_PHASES)
    assert name == "set up"
    assert began < ended
