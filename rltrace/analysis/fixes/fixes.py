"""Fixes for a run's walls, best first: settings, predicted gains, risks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from rltrace.analysis.fixes import playbook
from rltrace.analysis.fixes.options import KnownJob, known_job, offered, options_for
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.analysis.stats.confidence_interval import Estimate, t95
from rltrace.analysis.walls.attribute import that_count
from rltrace.analysis.walls.rank import Ranking
from rltrace.analysis.walls.rewards import TOOLS, successes
from rltrace.analysis.walls.wall import ENV_REWARD, FRESHNESS, Wall, stages_of
from rltrace.analysis.whatif import predict
from rltrace.analysis.whatif.levers import LEVERS
from rltrace.analysis.whatif.predict import (
    OffTheRun,
    Prediction,
    Source,
    is_off,
    predictor,
    verdict_of,
)
from rltrace.trace.errors import RltraceError
from rltrace.trace.vocabulary import Stage, word

_Predict = Callable[[Sequence[tuple[str, str]]], Prediction]
_GOOD = 1.02  # a gain below this is none

_SLOW_LINK_GB_PER_S = 1.0  # about what one 10 Gbit/s link carries
_LEAST_OF_UPDATE = 0.05
_NOT_MUCH_LESS = 0.25
_BETA = "some prompts never succeed, the others by chances drawn from one beta distribution"
_ESS_FALLS: tuple[str, ...] = (
    "ESS falls with each version of lag by one factor (low end) or faster (high end)",
)


@dataclass(frozen=True)
class Fix:
    """One move against `wall`. `setting` and `value` are the option that makes it in this job
    (empty and None: none does), `needs` what has to be set with it, `printed` all of that as the
    framework takes it, `also` options that make the same move; `now` is its value in the run (None:
    unknown). `program`: none in this job, but one of that program. `lever` is what was moved to
    predict it, `size` how far, in words. `gain` is the step now over the step then, `goodput_gain`
    the same in useful tokens for each device-second; None where nothing predicts it, which
    `unpredicted` explains. `outcome` is a word of `predict`, or "" without a prediction."""

    wall: str
    move: str
    size: str
    setting: str
    value: Any
    needs: Mapping[str, Any]
    effect: str
    also: tuple[str, ...]
    lever: str
    gain: Estimate | None
    goodput_gain: Estimate | None
    outcome: str
    unpredicted: str
    rests_on: tuple[str, ...]
    effort: int
    risk: str
    watch: str
    source: str
    now: Any = None
    printed: str = ""
    program: str = ""

    @property
    def sized(self) -> str:
        """The move and how far: "more reward workers (x4)"; the move alone where its setting, which
        is shown beside it, has the very value that the lever was moved to."""
        stated = self.setting and str(self.value) == self.lever.partition("=")[2]
        return f"{self.move} ({self.size})" if self.size and not stated else self.move

    @property
    def gains(self) -> bool:
        """Whether it is predicted to gain more than next to nothing."""
        return self.goodput_gain is not None and self.goodput_gain.value > _GOOD

    @property
    def may_lose(self) -> bool:
        return self.goodput_gain is not None and self.goodput_gain.may_lose

    @property
    def idle(self) -> bool:
        """Whether it is predicted to change nothing, to the percent."""
        gains = [one for one in (self.goodput_gain, self.gain) if one is not None]
        return bool(gains) and all(round(100 * (one.value - 1)) == 0 for one in gains)

    @property
    def loses(self) -> bool:
        """Whether it is predicted to gain nothing for what it costs, though it changes the job."""
        gain = self.goodput_gain
        return gain is not None and not self.idle and gain.is_no_gain


def fixes_for(analysis: RunAnalysis, ranking: Ranking, source: Source | None) -> tuple[Fix, ...]:
    """All moves against the walls that bind: those with a predicted gain first (of these what an
    option makes, and what may lose behind what does not), then those that nothing predicts, then
    those that gain nothing. Left out is what changes a stage that was not
    seen, what the run has already, an option that it lacks where it states all, and what another
    framework's setting makes and nothing predicts (but where the replay is off the run)."""
    job = known_job(analysis.run)
    names = [wall.name for wall in ranking.binding]
    stages = _stages(analysis, ranking.binding)
    aside: tuple[str, ...] = ("bytes",) if job.framework else ("bytes", "pieces")
    if bytes_take_time(analysis):
        aside = ()
    load = analysis.workload
    off = load is not None and is_off(load)
    bounds = Bounds(
        ranking.walls, analysis.longest_chain, load is not None and load.engine.tools_hold
    )
    ask = predictor(source) if source is not None else None

    def predict(moved: Sequence[tuple[str, str]]) -> Prediction:
        if ask is None:
            raise RltraceError("the run cannot be replayed")
        return held(ask(moved), bounds)

    spans = slow_spans(analysis, ranking.binding, job.framework)
    found: dict[tuple[str, str, str], Fix] = {}  # a move may be against two walls that bind
    for move in playbook.moves():
        seen = not move.stage or move.stage in stages
        if move.wall not in names or not seen or move.saves in aside:
            continue
        fix = _fix(analysis, move, predict, job, spans)
        by_hand = not playbook.made_by_settings(move) or (off and fix is not None and fix.lever)
        if fix and (fix.setting or fix.goodput_gain is not None or by_hand):
            found.setdefault((fix.move, fix.setting, fix.lever), fix)

    def order(fix: Fix) -> tuple[float, ...]:
        if fix.goodput_gain is None:
            return 1, fix.effort
        worth = (fix.goodput_gain.value - 1) / fix.effort
        return 2 * (not fix.gains), not fix.setting, fix.may_lose, -worth, fix.effort

    return tuple(sorted(found.values(), key=order))


def _stages(analysis: RunAnalysis, walls: tuple[Wall, ...]) -> set[str]:
    """The stages that were seen, and of tools and verdicts those that take the time."""
    rows = [row for row in analysis.stages if row.stage in stages_of(ENV_REWARD)]
    seen = {row.stage for row in rows}
    slight = seen - {row.stage for row in that_count(rows)}
    found = {word(row.stage) for row in analysis.stages if row.stage not in slight}
    if Stage.ENV not in seen and any(f.name == TOOLS for wall in walls for f in wall.evidence):
        found.add(word(Stage.ENV))
    return found


def slow_spans(analysis: RunAnalysis, walls: Sequence[Wall], framework: str) -> tuple[str, ...]:
    """Of the spans that a framework has settings for against the walls those that take the longest,
    or not much less; the longest first. They may be waits for the process that does the work."""
    names = {wall.name for wall in walls}
    settings = playbook.frameworks().get(framework, ())
    if not (known := {name for one in settings if one.wall in names for name in one.span}):
        return ()
    rows = analysis.run.ask(
        "select text, sum(end_ns - start_ns) from raw_spans join names on names.id = name where "
        "end_ns > 0 group by 1 order by 2 desc, 1"
    )
    took = [(str(name), float(took_ns)) for name, took_ns in rows if name in known]
    return tuple(name for name, took_ns in took if took_ns >= _NOT_MUCH_LESS * took[0][1])


def bytes_take_time(analysis: RunAnalysis) -> bool:
    """Whether what an update sends may be why it takes so long: not where a slow link would carry
    it in a small part of that time. True where its bytes are not known."""
    moved = analysis.syncs
    if moved is None or not moved.bytes_per_update.n or not moved.update_s.mean > 0:
        return True
    at_least_s = moved.bytes_per_update.mean / (_SLOW_LINK_GB_PER_S * 1e9)
    return at_least_s >= _LEAST_OF_UPDATE * moved.update_s.mean


def _fix(
    analysis: RunAnalysis, move: playbook.Move, predict: _Predict, job: KnownJob,
    spans: Sequence[str],
) -> Fix | None:  # fmt: skip
    """A move as the job's settings make it; None where it does not apply to the run."""
    value = move.value
    if move.lever == "lag_bound":  # below 1 actors wait for every update
        value = str(max(1, analysis.freshness.bound.safe_lag))
    settings, program = options_for(move, job, _moved(analysis, move.lever, value), spans)
    has = playbook.settings_for(job.framework, job.version, move)
    by_hand = move.lever or not playbook.made_by_settings(move)
    if not (settings or program) and (has or not by_hand):
        return None
    found: Prediction | None = None
    gain: Estimate | None = None
    lever, rests = "", _ESS_FALLS
    why = move.no_number or "no lever of the what-if replay stands for this move"
    first = settings[0] if settings else None
    if move.lever and first and not first.follows:
        why = f"how far {first.option} moves what would be replayed is not known"
    elif move.wall == FRESHNESS and move.lever == "lag_bound":
        lever = f"lag_bound={value}"
        gain = _of_freshness(analysis, float(value))
        why = "the lag keeps within this bound already"
    elif move.lever:
        lever, rests = f"{move.lever}={value}", ()
        try:
            found = predict([(move.lever, value)])
            rests = found.rests_on
        except RltraceError as error:
            why = str(error)
            if "cannot be moved here" in why and "already" in why:
                return None
            lever = lever if isinstance(error, OffTheRun) else ""
    if move.lever == "samples":
        off_the_run = bool(lever) and found is None  # what the samples cost is half of it
        gain = samples_gain(successes(analysis), float(value.removeprefix("x")))
        if gain is None:
            found, lever, why = None, "", "too few groups succeed to tell how chances differ"
        else:
            gain = gain.and_then(found.goodput_gain) if found else None if off_the_run else gain
            rests = (_BETA, *(rests or ("a sample costs what it costs now",)))
    size = (move.size or "{value}" * move.is_amount) if lever else ""
    return Fix(
        wall=move.wall, move=move.move,
        size=size.format(value=lever.partition("=")[2]),
        setting=first.option if first else "",
        value=first.value if first else None,
        needs=first.needs if first else {},
        effect=first.effect if first else "",
        also=tuple(offered(job, one, {}) for one in settings[1:]),
        lever=lever,
        gain=found.gain if found else None,
        goodput_gain=gain if gain is not None else found.goodput_gain if found else None,
        outcome="faster" if gain is not None else found.outcome if found else "",
        unpredicted=why if found is None and gain is None else "",
        rests_on=rests if gain is not None or found is not None else (),
        effort=move.effort, risk=move.risk, watch=move.watch, source=move.source,
        now=job.current.get(first.option) if first else None,
        printed=offered(job, first, first.needs) if first else "",
        program=program,
    )  # fmt: skip


def _moved(analysis: RunAnalysis, lever: str, value: str) -> str:
    """What the options of a move are set by: a cap in tokens, where lengths are known."""
    load = analysis.workload
    if lever != "tail_cap" or load is None or load.without_samples:
        return value
    tokens = np.concatenate([batch.tokens for batch in load.batches])
    are_known = tokens.max() > 1.5  # else 1 each
    return str(math.ceil(np.percentile(tokens, float(value[1:])))) if are_known else value


def _of_freshness(analysis: RunAnalysis, bound: float) -> Estimate | None:
    fresh, lag = analysis.freshness, analysis.staleness.token_weighted_lag
    base = next((p.ess_share.value for p in fresh.curve if p.lag == 0 and p.enough), 1.0)
    share = fresh.effective_share
    # What counts now is known within an interval, and the gain is over that.
    weights = share.value, share.high, share.low
    found, least, most = (freshness_gain(one, base, lag, bound) for one in weights)
    if found is None:
        return None
    low, high = (least or found).low, (most or found).high
    return Estimate(min(low, found.low), found.value, max(high, found.high))


# --- what moves against statistical walls would gain: no replay of events tells that
# Freshness: ESS falls with lag k as a^k (a policy that drifts in random directions: the variance of
# the log-ratio grows with k) to a^(k²) (in one direction: with k²).
# Samples: some prompts never succeed, and stay so; the chance of the others differs as a beta
# distribution, fitted to the run's groups; K samples are all alike with a chance in closed form.

_FOLDS = 5
_SHAPES = [10 ** (place / 6 - 2) for place in range(25)]  # 0.01 to 100
_Fit = tuple[float, float, float, float]  # log-likelihood, share that never succeeds, shapes
_NEVER = [place / 20 for place in range(20)]  # share of prompts that never succeed
_AS_LIKELY = 1.92  # in log-likelihood: 95 % of a chi-square with one degree of freedom, halved


def freshness_gain(weight: float, base: float, mean_lag: float, bound: float) -> Estimate | None:
    """Effective tokens with lags up to `bound` over those now; `weight` is ESS / N now, `base` that
    at lag 0. None where the lag is within the bound, or nothing is known."""
    if not (0 < weight < base <= 1) or not mean_lag > bound >= 0:
        return None
    kept, part = weight / base, bound / mean_lag
    low, high = (base * kept**power / weight for power in (part, part**2))
    return Estimate(low, math.sqrt(low * high), high)


def samples_gain(successes: Sequence[tuple[int, int]], factor: float) -> Estimate | None:
    """Share of groups with a signal at `factor` times the samples, over that now. The range is a
    jackknife over fifths of the groups, and each share of prompts that never succeed which is as
    likely. None where there are too few of them, or none succeeds."""
    if len(successes) < _FOLDS or not any(won for won, _ in successes):
        return None
    size = round(sum(of for _, of in successes) / len(successes))

    def gain(fit: _Fit) -> float:
        now = _signal(fit, size)
        return math.log(_signal(fit, round(factor * size)) / now) if now else math.nan

    fits, numbered = _fits(successes), list(enumerate(successes))
    middle = gain(best := max(fits))
    alike = [gain(fit) for fit in fits if fit[0] > best[0] - _AS_LIKELY]
    folds = ([one for n, one in numbered if n % _FOLDS != fold] for fold in range(_FOLDS))
    left = [gain(max(_fits(fold))) for fold in folds]
    mean = sum(left) / _FOLDS
    error = math.sqrt((_FOLDS - 1) / _FOLDS * sum((one - mean) ** 2 for one in left))
    if math.isnan(middle) or math.isnan(error):
        return None
    half = t95(_FOLDS - 1) * error
    low, high = (math.hypot(half, middle - end) for end in (min(alike), max(alike)))
    return Estimate(math.exp(middle - low), math.exp(middle), math.exp(middle + high))


def _signal(fit: _Fit, samples: int) -> float:
    _, never, a, b = fit
    alike = math.exp(_log_beta(a + samples, b) - _log_beta(a, b))
    alike += math.exp(_log_beta(a, b + samples) - _log_beta(a, b))
    return (1 - never) * (1 - alike)


def _fits(successes: Sequence[tuple[int, int]]) -> list[_Fit]:
    """For each share of prompts that never succeed the likeliest beta-binomial of the others, on a
    grid that is fine enough for a range."""
    groups, found = Counter(successes).items(), []
    for a, b in product(_SHAPES, _SHAPES):
        whole = _log_beta(a, b)
        chances = [(math.exp(_log_beta(a + k, b + n - k) - whole), k, m) for (k, n), m in groups]
        for never in _NEVER:
            parts = ((m, (1 - never) * one + never * (k == 0)) for one, k, m in chances)
            found.append((sum(m * math.log(max(p, 1e-300)) for m, p in parts), never, a, b))
    return [max(fit for fit in found if fit[1] == never) for never in _NEVER]


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


# A lever that shortens a stage and changes nothing else gains no more than that stage costs; where
# a replay says so it is wrong about who waits for whom.

NO_MORE = "no more is gained than the work takes that is saved or hidden"
_OVERLAP = "placement=one-step-off"
_PLACES = ("slots", "rollout_workers")


@dataclass(frozen=True)
class Bounds:
    """What a gain is held against: the walls' costs, and the part of a step in which the busier of
    actors and learner works (0: not known). `tools_hold`: places of a worker are held by tools."""

    walls: Sequence[Wall]
    longest_chain: float
    tools_hold: bool


def most_gain(levers: Sequence[str], bounds: Bounds) -> float:
    """The gain of a run without the stages that these levers (`name=value`) shorten, at the upper
    ends of what their walls cost (generation's: with its tail); infinite where that is not known,
    or one of the levers does more than shorten a stage. Where tools hold places of a worker, more
    places save time of tools, too. Overlap alone leaves the longest chain as it was."""
    if list(levers) == [_OVERLAP] and bounds.longest_chain > 0:
        return max(1.0, 1 / bounds.longest_chain)
    names = [lever.partition("=")[0] for lever in levers]
    stages = {LEVERS[name].within if name in LEVERS else None for name in names}
    if None in stages:
        return math.inf
    if bounds.tools_hold and {*names} & {*_PLACES}:
        stages.add(Stage.ENV)
    costs = [w.cost for w in bounds.walls if stages & {*stages_of(w.name)} and w.cost.known]
    share = sum(cost.share if math.isnan(cost.high) else cost.high for cost in costs)
    return 1 / (1 - share) if costs and share < 1 else math.inf


def held(found: Prediction, bounds: Bounds) -> Prediction:
    """The prediction, with no end of a gain beyond `most_gain`."""
    most = most_gain(found.levers, bounds)
    gain, goodput = found.gain.at_most(most), found.goodput_gain.at_most(most)
    if (gain, goodput) == (found.gain, found.goodput_gain):
        return found
    was = found.goodput_gain.value
    return replace(
        found,
        outcome=verdict_of(goodput),
        step_s=found.step_s.longer(Estimate(*[found.before_s / most] * 3)),
        gain=gain,
        goodput_gain=goodput,
        useful_tokens_per_device_s=goodput.times(found.useful_tokens_per_device_s.value / was),
        useful_tokens_per_usd=goodput.times(found.useful_tokens_per_usd.value / was),
        rests_on=(*found.rests_on, NO_MORE),
    )


def ranked(source: Source, bounds: Bounds) -> tuple[list[Prediction], dict[str, str]]:
    """As `predict.ranked`, each held. Errors: `OffTheRun` where nothing can be predicted."""
    predicted, untold = predict.ranked(source)
    found = [held(one, bounds) for one in predicted]
    return sorted(found, key=predict.place), untold
