"""Engines that hold other weights than the learner, or sample otherwise: which, and since when."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.analysis.trajectories.engine_gaps import (
    CHANCE,
    LEAST_NATS,
    T_LIMITS,
    EngineGaps,
    engine_gaps,
)
from rltrace.testing import process, run_of
from rltrace.testing.handmade_runs import rows, stating
from rltrace.testing.inside.analysis import ALARM, RunAnalysis, quantile, summarize
from rltrace.testing.inside.report import judgement
from rltrace.testing.inside.trace import Fate, SyncRole
from rltrace.testing.inside.trace import OpenedRun as Run
from tests.analysis.health.jobs import health_of

NUMERICS = 1e-3  # nats a token, as of an engine in bfloat16
SAMPLES, TOKENS = 12, 30


class Job:
    """Engines whose samples have gaps of so many nats: `gap(version, engine)`, in the updates of
    each version; `lag` versions later they are trained on. A gap of 0 is that of single precision.
    """

    def __init__(
        self, path: Path, gap: Callable[[int, int], float], versions: int = 16, engines: int = 3,
        lag: int = 0, minibatches: int = 1, stated: int | None = 1, seed: int = 0,
        support: Callable[[int, int], float] = lambda version, engine: 1.0, begins: int = 0,
        sent: Callable[[int], int] | None = None, more: dict[str, int] | None = None,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(seed)
        learner = process("learner")
        made = [process("rollout", rank=i) for i in range(engines)]
        for version, (engine, one) in product(range(versions), enumerate(made)):
            if engine == engines - 1 and version < begins:
                continue
            ids = [f"{version}/{engine}/{i}" for i in range(SAMPLES)]
            rows(one, "trajectories", trajectory=ids, start_s=version, end_s=version + 0.5,
                 response_tokens=TOKENS, **{"first_version": version, "last_version": version,
                                            **(more or {})})  # fmt: skip
            for part in range(minibatches):  # the policy moves from one to the next
                nats = gap(version, engine) + 0.05 * part
                log_w = np.sqrt(2 * nats) * rng.standard_normal((SAMPLES, TOKENS)) - nats
                kept = support(version, engine)
                w = np.minimum(np.exp(log_w), 1.0) * kept if kept < 1 else np.exp(log_w)
                mine = slice(part, None, minibatches)
                rows(learner, "uses", trajectory=ids[mine], version=version + lag,
                     time_s=version + lag + 0.6 + part / 10, step=version + lag, tokens=TOKENS,
                     fate=Fate.TRAINED, mean_log_ratio=np.log(w).mean(1)[mine].tolist(),
                     sum_w=w.sum(1)[mine].tolist(),
                     sum_w_squared=(w**2).sum(1)[mine].tolist())  # fmt: skip
        if sent is not None:
            for one in (learner, *made):
                rows(one, "syncs", start_s=list(range(versions)), version=list(range(versions)),
                     end_s=[n + 0.1 for n in range(versions)],
                     role=SyncRole.SOURCE if one is learner else SyncRole.SINK,
                     checksum=[sent(n) for n in range(versions)])  # fmt: skip
        run = run_of(path, learner, *made)
        facts = {} if stated is None else {"updates_per_version": stated}
        self.run = stating(run, *[facts] * (engines + 1))


def test_limits_are_those_of_students_t() -> None:
    exact = [quantile(1 - CHANCE, freedom) for freedom in range(1, len(T_LIMITS) + 1)]
    assert pytest.approx(exact, rel=1e-3) == list(T_LIMITS)


def gaps_of(run: Run) -> EngineGaps:
    return engine_gaps(RunAnalysis(run))


def named(found: EngineGaps) -> list[tuple[str | None, int, int | None]]:
    return [(one.engine, one.version, one.until_version) for one in found.departures]


def fault(versions: range, engine: int | None, nats: float, usual: float) -> Any:
    """A gap of `nats` at an engine (None: all) in some versions."""
    return lambda v, e: nats if v in versions and engine in (None, e) else usual


@pytest.mark.parametrize("usual", [0.0, NUMERICS], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("versions", "engine", "expected"),
    [
        (range(9, 10), 1, ("rollout 1", 9, 10)),  # it did not take this one
        (range(9, 10), None, (None, 9, 10)),
        (range(9, 16), 2, ("rollout 2", 9, None)),
        (range(9, 16), None, (None, 9, None)),
        (range(9, 13), 0, ("rollout 0", 9, 13)),
    ],
)
def test_the_engine_and_the_version_are_named(
    tmp_path: Path, usual: float, versions: range, engine: int | None, expected: Any
) -> None:
    nats = usual * 50 or 1e-4
    found = gaps_of(Job(tmp_path, fault(versions, engine, nats, usual)).run)
    assert named(found) == [expected]
    assert (found.lag, found.alone) == (0, True)
    (one,) = found.departures
    assert (one.step, one.first, one.cut) == (9, False, False)
    assert one.nats == pytest.approx(nats, rel=0.2)
    assert one.usual_nats == pytest.approx(max(usual, LEAST_NATS), rel=0.5)


def test_one_engine_of_one_is_held_against_its_past(tmp_path: Path) -> None:
    found = gaps_of(Job(tmp_path, fault(range(9, 10), None, 0.05, NUMERICS), engines=1).run)
    assert named(found) == [(None, 9, 10)]


def test_an_engine_that_came_anew_with_old_weights_is_held_against_the_others(
    tmp_path: Path,
) -> None:
    found = gaps_of(Job(tmp_path, fault(range(9, 11), 2, 0.05, NUMERICS), begins=9).run)
    assert named(found) == [("rollout 2", 9, 11)]


def noise(seed: int, drift: float) -> Callable[[int, int], float]:
    """Gaps of engines that are well: each has its own, which changes from version to version."""
    rng = np.random.default_rng(seed)
    own, all_, each = rng.normal(0, 0.5, 8), rng.normal(0, 0.2, 99), rng.normal(0, 0.3, (99, 8))
    return lambda v, e: NUMERICS * float(np.exp(own[e] + all_[v] + each[v, e] + drift * v))


@pytest.mark.parametrize("drift", [0.0, 0.1])
@pytest.mark.parametrize("engines", [1, 4])
def test_engines_that_are_well_give_no_alarm(tmp_path: Path, engines: int, drift: float) -> None:
    for seed in range(4):
        job = Job(tmp_path / str(seed), noise(seed, drift), 40, engines, seed=seed)
        assert named(gaps_of(job.run)) == []
        assert {one.kind for one in health_of(job.run).alarms} == set()


def test_what_moves_all_engines_is_the_policy_where_samples_are_old(tmp_path: Path) -> None:
    """The learning rate rises tenfold at version 10: all samples of lag 1 are further off."""
    rate: Any = lambda v, e: NUMERICS * (100 if v >= 10 else 1)  # noqa: E731
    found = gaps_of(Job(tmp_path / "a", rate, lag=1).run)
    assert (found.lag, found.alone, named(found)) == (1, False, [])
    beside: Any = lambda v, e: rate(v, e) * (40 if (v, e) == (12, 1) else 1)  # noqa: E731
    assert named(gaps_of(Job(tmp_path / "b", beside, lag=1).run)) == [("rollout 1", 12, 13)]


def test_how_many_updates_a_version_is_has_to_be_known(tmp_path: Path) -> None:
    """Else the learner may have moved from one to the next."""
    found = gaps_of(Job(tmp_path, fault(range(9, 10), None, 0.1, NUMERICS), stated=None).run)
    assert (found.alone, named(found)) == (False, [])


def test_only_samples_of_a_version_s_first_update_tell(tmp_path: Path) -> None:
    """In the others the learner's own movement hides a gap that is smaller."""
    found = gaps_of(Job(tmp_path, fault(range(9, 10), 1, 1e-3, 0.0), minibatches=3, stated=3).run)
    assert named(found) == [("rollout 1", 9, 10)]
    assert all(one.gap_nats < LEAST_NATS for one in found.engines)


def test_a_part_of_the_distribution_is_told_from_another_one(tmp_path: Path) -> None:
    cut: Any = lambda v, e: 0.9 if v >= 9 and e == 1 else 1.0  # noqa: E731
    (one,) = gaps_of(Job(tmp_path, lambda v, e: NUMERICS, support=cut).run).departures
    assert (one.engine, one.version, one.cut) == ("rollout 1", 9, True)


@pytest.mark.parametrize(
    ("versions", "usual", "expected"),
    [
        (12, NUMERICS, [("rollout 1", 0, None)]),
        (3, NUMERICS, []),  # too few versions to say so
        (12, 0.03, []),  # not so far from the others
    ],
)
def test_an_engine_that_never_was_as_the_others(
    tmp_path: Path, versions: int, usual: float, expected: Any
) -> None:
    found = gaps_of(Job(tmp_path, fault(range(99), 1, 0.1, usual), versions).run)
    mine = [one for one in found.departures if one.engine]
    assert [(one.engine, one.version, one.until_version) for one in mine] == expected
    assert all(one.first for one in mine)


def test_all_that_never_were_as_the_learner_are_a_note(tmp_path: Path) -> None:
    run = Job(tmp_path, lambda v, e: 0.2, 8).run
    (one,) = gaps_of(run).departures
    assert (one.engine, one.first, one.version) == (None, True, 0)
    assert [(one.kind, one.severity) for one in health_of(run).alarms] == [("weights", "note")]


@pytest.mark.parametrize("more", [{"logprobs": 0}, {"last_version": 99}])
def test_samples_of_several_versions_or_without_the_server_s_log_probs_say_nothing(
    tmp_path: Path, more: dict[str, int]
) -> None:
    found = gaps_of(Job(tmp_path, fault(range(9, 10), 1, 0.1, 0.0), more=more).run)
    assert (found.lag, found.engines, found.departures, found.needs) == (-1, (), (), "")


def test_an_alarm_leaves_the_verdict_alone_and_says_what_was_sent(tmp_path: Path) -> None:
    sent: Any = lambda n: 8 if n == 9 else n  # noqa: E731
    run = Job(tmp_path, fault(range(9, 10), None, 0.1, NUMERICS), sent=sent).run
    found = health_of(run)
    (one,) = found.alarms
    assert (one.kind, one.severity, found.ok) == ("weights", ALARM, True)
    assert one.says.endswith("digest of version 8")
    exported = [labels for name, labels, _ in judgement(summarize(run)) if name == "rltrace_alarm"]
    assert exported == [(one.short,)]


def test_another_digest_than_what_was_sent_is_an_alarm(tmp_path: Path) -> None:
    learner, engine = process("learner"), process("rollout")
    for one, role, sums in ((learner, SyncRole.SOURCE, [5, 6]), (engine, SyncRole.SINK, [5, 7])):
        rows(one, "syncs", start_s=[1.0, 2.0], end_s=[1.5, 2.5], version=[1, 2], role=role,
             checksum=sums)  # fmt: skip
    alarms = health_of(run_of(tmp_path, learner, engine)).alarms
    assert [(one.kind, one.severity) for one in alarms] == [("digests", ALARM)]


def test_what_it_costs_and_where_it_goes(tmp_path: Path) -> None:
    grown: Any = lambda v, e: 1e-3 * 10 ** (v / 19)  # noqa: E731  # tenfold over the run
    found = gaps_of(Job(tmp_path, grown, 20, engines=2).run)
    for one in found.engines:
        assert one.growth.low < 10 < one.growth.high < 20
        assert (one.versions, one.tokens) == (20, 20 * SAMPLES * TOKENS)
        assert 0.002 < one.lost_tokens / one.tokens < 0.02  # 1 - exp(-2 nats), nearly
        assert one.gap_nats < one.last_nats


@pytest.mark.parametrize(
    ("adapter", "version", "stated", "needs"),
    [
        ("openrlhf", "0.10.2", {}, "is_correction_enable"),
        ("verl", "0.9.1", {}, "calculate_log_probs"),
        ("", "", {}, ""),
    ],
)
def test_without_ratios_the_framework_s_setting_is_named(
    tmp_path: Path, adapter: str, version: str, stated: dict[str, Any], needs: str
) -> None:
    run = run_of(tmp_path, process("learner", (("step", 0), 0, 1)))
    facts = {"adapter": adapter, "versions": {adapter: version}, **stated}
    found = gaps_of(stating(run, facts))
    assert (found.lag, found.engines) == (-1, ())
    assert needs in found.needs
    assert bool(needs) == bool(found.needs)
