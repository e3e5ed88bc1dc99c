"""The public recording API, as a program uses it and as the reading half sees it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import rltrace
from rltrace.testing.inside.analysis import summarize
from rltrace.testing.inside.hooks import MOST_PROBLEMS, identify
from tests.conftest import Record
from tests.patience import PATIENCE_S


def rows(run_path: Path, query: str) -> list[tuple]:
    return rltrace.open_run(run_path).sql(query).fetchall()


def test_nothing_happens_without_a_run() -> None:
    with rltrace.step(1), rltrace.span("rollout") as span:
        span.set(tokens=4)
        with rltrace.trajectory("a") as trajectory:
            trajectory.first_token()
            trajectory.finish("length", response_tokens=3)
        with rltrace.reward("a") as reward:
            reward.set(value=1.0)
        rltrace.use("a")
        rltrace.counter("queue", 3)
        with rltrace.weight_update(1):
            pass
    rltrace.step(2).end()


def test_an_exception_passes_through_an_idle_span() -> None:
    with pytest.raises(KeyError, match="mine"), rltrace.span("rollout"):
        raise KeyError("mine")


def test_spans_carry_every_column(run_path: Path, record: Record) -> None:
    record("""
wide = {"step": 7, "version": 3, "tokens": 5, "bytes": 2**40, "items": 9}
with rltrace.span("sync", "broadcast", "transfer", **wide): pass
""")
    columns = "stage, name, phase, step, version, tokens, bytes, items, end_ns > start_ns"
    assert rows(run_path, f"SELECT {columns} FROM spans") == [
        ("sync", "broadcast", "transfer", 7, 3, 5, 2**40, 9, True)
    ]


def test_spans_nest_by_containment_and_belong_to_the_step(run_path: Path, record: Record) -> None:
    record("""
for n in range(3):
    with rltrace.step(n):
        with rltrace.span("rollout"):
            with rltrace.span("reward", "math"):
                pass
with rltrace.span("checkpoint"): pass
""")
    inside = rows(
        run_path,
        "SELECT i.step, o.step FROM spans i JOIN spans o "
        "ON i.start_ns >= o.start_ns AND i.end_ns <= o.end_ns "
        "WHERE i.stage = 'reward' AND o.stage = 'rollout' ORDER BY 1",
    )
    assert inside == [(0, 0), (1, 1), (2, 2)]
    assert rows(run_path, "SELECT step FROM spans WHERE stage = 'checkpoint'") == [(None,)]
    assert rows(run_path, "SELECT step, seconds > 0 FROM steps") == [(n, True) for n in range(3)]


def test_a_step_called_at_the_top_of_the_loop_ends_the_one_before(
    run_path: Path, record: Record
) -> None:
    record("""
for n in range(3):
    rltrace.step(n)
    with rltrace.span("train"): pass
""")
    assert rows(run_path, "SELECT step, end_ns IS NULL FROM steps") == [
        (0, False),
        (1, False),
        (2, False),
    ]


@pytest.mark.parametrize(
    "loop",
    [
        """
for n in range(3):
    try:
        with rltrace.step(n):
            if n == 1: raise ValueError
    except ValueError: pass
""",
        """
import asyncio
async def main():
    for n in range(3):
        try:
            async with rltrace.step(n):
                if n == 1: raise ValueError
        except ValueError: pass
asyncio.run(main())
""",
    ],
    ids=["with", "async with"],
)
def test_a_step_that_an_exception_leaves_has_no_end(
    run_path: Path, record: Record, loop: str
) -> None:
    record(loop)
    found = rows(run_path, "SELECT step, end_ns IS NULL FROM steps")
    assert found == [(0, False), (1, True), (2, False)]
    told = [(p["what"], p["target"], p["detail"]) for p in rltrace.open_run(run_path).problems]
    assert [(what, step, said.partition(":")[0]) for what, step, said in told] == [
        ("step-failed", "1", "ValueError in generated code")
    ]


def test_the_step_that_a_program_dies_in_has_no_end(run_path: Path, record: Record) -> None:
    record("for n in range(3):\n    rltrace.step(n)\n    1 / (2 - n)", check=False)
    found = rows(run_path, "SELECT step, end_ns IS NULL FROM steps")
    assert found == [(0, False), (1, False), (2, True)]
    told = [(p["target"], p["detail"]) for p in rltrace.open_run(run_path).problems]
    assert told == [("2", "ZeroDivisionError in generated code")]


def test_a_process_that_is_killed_leaves_its_open_spans(run_path: Path, record: Record) -> None:
    record(
        """
rltrace.step(4)
with rltrace.span("rollout", tokens=3): os.kill(os.getpid(), 9)
""",
        check=False,
    )
    found = rows(run_path, "SELECT stage, step, tokens, end_ns FROM spans ORDER BY start_ns")
    assert found == [("step", 4, None, None), ("rollout", 4, 3, None)]


def test_every_kind_of_function_can_be_decorated(run_path: Path, record: Record) -> None:
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
    assert rows(run_path, "SELECT sum(tokens), count(bytes) FROM spans") == [(21, 0)]
    counted = rows(run_path, "SELECT name, stage, count(*), count(end_ns) FROM spans GROUP BY 1, 2")
    assert sorted(counted) == [
        ("agenerator", "rollout", 1, 1),
        ("coroutine", "env", 1, 1),
        ("generator", "rollout", 1, 1),
        ("plain", "reward", 3, 3),
    ]


def test_asyncio_tasks_are_lanes_of_their_own(run_path: Path, record: Record) -> None:
    record("""
import asyncio
from rltrace.hooks.spans import watch_asyncio
watch_asyncio()
async def one(i):
    with rltrace.span("rollout", items=i):
        await asyncio.sleep(0.01)
async def main():
    await asyncio.gather(*[one(i) for i in range(3)])
asyncio.run(main())
with rltrace.span("train"): pass
""")
    lanes = rows(run_path, "SELECT DISTINCT lane FROM spans")
    assert len(lanes) == 4


def test_an_unknown_stage_is_recorded_as_other_and_said_once(
    run_path: Path, record: Record
) -> None:
    said = record("""
for _ in range(3):
    with rltrace.span("frobnicate"): pass
""").stderr
    assert said.count("frobnicate") == 1
    assert len(said.splitlines()) == 1
    assert rows(run_path, "SELECT stage, name, count(*) FROM spans GROUP BY ALL") == [
        ("other", "frobnicate", 3)
    ]


def test_a_value_that_does_not_fit_costs_its_column_only(run_path: Path, record: Record) -> None:
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
    found = rows(run_path, f"SELECT {columns} FROM spans WHERE end_ns > 0 ORDER BY start_ns")
    assert found == [
        ("rollout", None, None, None, 3),
        ("reward", None, None, None, None),
        ("train", None, None, 5, None),
        ("env", None, 12, None, None),
        ("value", None, None, None, 4),
        ("other", None, None, None, None),
    ]
    assert rows(run_path, "SELECT value, outcome FROM rewards") == [(None, "ok")]
    assert rows(run_path, "SELECT fate, tokens FROM uses") == [(None, None)]
    problems = rltrace.open_run(run_path).problems
    assert {p["target"] for p in problems if p["what"] == "not-recorded"} >= {"tokens", "step"}
    assert {p["target"] for p in problems if p["what"] == "unknown-word"} == {"nonsense", "lost"}
    assert len(said.splitlines()) == 3  # two words and a stage that are none


def test_what_is_no_word_of_the_vocabulary_raises_nothing(run_path: Path, record: Record) -> None:
    record("""
class Silent:
    def __str__(self): raise RuntimeError("no text")
    __repr__ = __hash__ = __bool__ = __str__

for odd in (["stop"], {}, 10**5000, 3, b"ok", Silent()):
    trajectory = rltrace.trajectory("a")
    trajectory.finish(odd, response_tokens=3)
    rltrace.reward("a", 1.0, outcome=odd)
    rltrace.use("a", odd, tokens=3)
    with rltrace.weight_update(1, role=odd, transport=odd): pass
""")
    assert rows(run_path, "select response_tokens, finish from trajectories") == [(3, None)] * 6
    assert rows(run_path, "select value, outcome from rewards") == [(1.0, None)] * 6
    assert rows(run_path, "select tokens, fate from uses") == [(3, None)] * 6
    assert rows(run_path, "select version, role, transport from syncs") == [(1, None, None)] * 6


def test_of_an_object_in_the_place_of_a_word_its_kind_is_kept(
    run_path: Path, record: Record
) -> None:
    """It may be a completion, and nothing of its own is called: neither text nor time is ours."""
    done = record("""
class Output:
    def __str__(self): raise SystemExit("SEKRET")
    __repr__ = __str__
it = Output()
with rltrace.span(it), rltrace.span("rollout", it), rltrace.span(["SEKRET"]): pass
with rltrace.span("rollout", 7): pass
rltrace.trajectory("a").finish(it)
rltrace.use("a", it)
rltrace.counter(it, 1.0)
""")
    assert done.returncode == 0
    names = rows(run_path, "SELECT name FROM spans ORDER BY start_ns")
    kind = "a object"  # a class that `python -c` has made has no name of its own here
    assert names == [(kind,), (kind,), ("a list of length 1",), ("7",)]
    kept = b"".join(file.read_bytes() for file in run_path.rglob("*") if file.is_file())
    assert b"SEKRET" not in kept


def test_odd_values_are_named_and_counted(run_path: Path, record: Record) -> None:
    record("""
for _ in range(3):
    with rltrace.step("x"), rltrace.span("train", tokens=-5): pass
for _ in range(2):
    with rltrace.weight_update("v1"): pass
for i in range(100):
    rltrace.use(i, tokens=float("nan"))
rltrace.use("a", tokens=-1)
""")
    run = rltrace.open_run(run_path)
    assert run.sql("SELECT tokens FROM spans").fetchall() == [(None,)] * 3
    assert run.sql("SELECT count(*), count(tokens) FROM uses").fetchall() == [(101, 0)]
    said = {
        (problem.targets, problem.count, problem.at_least, *problem.detail.split()[:2])
        for problem in summarize(run).coverage.problems
    }
    assert said >= {
        (("rltrace.step",), 3, False, "a", "str"),
        (("version",), 2, False, "a", "str"),
        (("tokens",), 64, True, "nan", "(float)"),
        (("spans.tokens",), 1, False, "3", "below"),
    }


def test_of_a_value_that_is_no_number_its_kind_is_written_down(
    run_path: Path, record: Record
) -> None:
    """It may be a prompt, or as long as all of them."""
    said = record("""
class Token:
    def __repr__(self):
        print("asked")
        return "the text"
class Loud(float):
    def __repr__(self): return "the text " * 100
with rltrace.span("train", tokens=[Token()] * 1000, items="the text", bytes=Token()): pass
with rltrace.span("train", version=Loud("nan")): pass
rltrace.use("a", "the text " * 100)
""")
    assert said.stdout == ""
    run = rltrace.open_run(run_path)
    told = {problem.targets: problem.detail for problem in summarize(run).coverage.problems}
    assert told[("tokens",)].startswith("a list of length 1000 does not fit")
    assert told[("items",)].startswith("a str of length 8 does not fit")
    assert told[("bytes",)].startswith("a object does not fit")
    assert max(map(len, told.values())) < 150
    assert all(len(str(problem.get("target"))) <= 60 for problem in run.problems)


@pytest.mark.parametrize(
    "number", ["7.5", "float('nan')", "float('inf')", "[1, 2]", "None", "'7.5'", "-1", "-2.0"]
)
def test_a_step_that_is_no_whole_number_from_0_on_is_none(
    run_path: Path, record: Record, number: str
) -> None:
    done = record(f"""
for step in (3, {number}, {number}, 4.0):
    with rltrace.step(step):
        with rltrace.span("train"): pass
print("fine")
""")
    assert (done.stdout, done.stderr) == ("fine\n", "")
    assert rows(run_path, "SELECT step FROM steps") == [(3,), (4,)]
    assert rows(run_path, "SELECT step FROM spans WHERE stage = 'train' ORDER BY start_ns") == [
        (3,),
        (None,),
        (None,),
        (4,),
    ]
    (problem,) = summarize(rltrace.open_run(run_path)).coverage.problems
    assert (problem.targets, problem.count) == (("rltrace.step",), 2)


def test_a_job_that_is_always_wrong_does_not_fill_the_terminal(
    run_path: Path, record: Record
) -> None:
    said = record("""
for i in range(500):
    with rltrace.span(f"stage {i}"): pass
    rltrace.use(i, f"fate {i}")
""").stderr
    assert len(said.splitlines()) == 2 * MOST_PROBLEMS
    assert rows(run_path, "SELECT count(*) FROM spans WHERE stage = 'other'") == [(500,)]


def test_trajectories_rewards_and_uses_meet_by_id(run_path: Path, record: Record) -> None:
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
        run_path,
        "SELECT trajectory, prompt, first_version, last_version, prompt_tokens, response_tokens, "
        "finish, token_ids, logprobs, first_token_ns BETWEEN start_ns AND end_ns FROM trajectories",
    ) == [(identify("t/1"), identify("12"), 3, 5, 9, 40, "length", 1, None, True)]
    assert rows(run_path, "SELECT value, component, outcome FROM rewards") == [
        (0.25, "tests", "ok")
    ]
    assert rows(run_path, "SELECT lag, fate, tokens FROM lags ORDER BY fate") == [
        (2, "trained", 40),
        (None, "zero-advantage", None),
    ]
    assert rows(run_path, "SELECT version, role, transport, bytes, wire_bytes FROM syncs") == [
        (5, "source", "tcp", 100, None)
    ]


def test_a_block_that_raises_marks_its_row(run_path: Path, record: Record) -> None:
    record("""
for make in (rltrace.trajectory, rltrace.reward, rltrace.weight_update):
    try:
        with make(9): raise ValueError("theirs")
    except ValueError: pass
assert recorder.active().version == -1
""")
    assert rows(run_path, "SELECT finish, end_ns > 0 FROM trajectories") == [("error", True)]
    assert rows(run_path, "SELECT outcome, value FROM rewards") == [("error", None)]
    assert rows(run_path, "SELECT end_ns > 0 FROM syncs") == [(True,)]


def test_counters_are_samples(run_path: Path, record: Record) -> None:
    record("rltrace.counter('queue', 2.5); rltrace.counter('gpu', 1, device=3)")
    assert rows(run_path, "SELECT counter, value, device FROM samples") == [
        ("queue", 2.5, None),
        ("gpu", 1.0, 3),
    ]


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
    give_up = time.monotonic() + PATIENCE_S  # the agent is another process, and may come up late
    while "agent" not in {process.role for process in run.processes}:
        assert time.monotonic() < give_up
        time.sleep(0.1)
        run = rltrace.open_run(out)
