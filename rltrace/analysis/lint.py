"""Anti-patterns, looked for in the trace: each found, not found, or what would tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.fixes import bytes_take_time
from rltrace.analysis.walls.wall import Seen
from rltrace.trace.vocabulary import Finish, Outcome, Stage, Transport, word

FOUND, NOT_FOUND, CANNOT_TELL = "found", "not found", "cannot tell"

SYNC_SHARE = 0.1
"""Weights that hold the step up for less of it are not worth another mechanism."""
_LEAST_PIECE_BYTES = 16e6
_MANY_PIECES = 50
_FEWEST = 30
_APART = 1.63  # Kolmogorov and Smirnov's two-sample limit at 1 %
_SILENT_SHARE = 0.01


@dataclass(frozen=True)
class Lint:
    """One anti-pattern: whether the run has it, the evidence in a sentence, why it fails and what
    is better."""

    name: str
    verdict: str
    says: str
    why: str
    better: str


def lint(seen: Seen) -> tuple[Lint, ...]:
    """All six, in the playbook's order."""
    return (
        _unmeasured(seen), _full_reload(seen), _no_versions(seen), _silent_drops(seen),
        _retokenized(seen), _no_isolation(seen),
    )  # fmt: skip


def _unmeasured(seen: Seen) -> Lint:
    name = "picking a framework before measuring the rollout wall"
    need = (Stage.ROLLOUT, Stage.TRAIN, Stage.SYNC)
    stages = {row.stage for row in seen.stages}
    unseen = [word(stage) for stage in need if stage not in stages]
    says = "generation, training and weight movement are each measured"
    if unseen:
        says = f"not measured apart: {', '.join(unseen)}"
    return Lint(
        name,
        CANNOT_TELL if unseen else NOT_FOUND,
        says,
        "The algorithm is rarely what binds.",
        "Trace actors, rewards, learner and weights apart on a small run.",
    )


def _full_reload(seen: Seen) -> Lint:
    name = "naive full reload of the weights at each update"
    why = "It can take the whole step of a large model."
    better = "Reshard in place, send in buckets or what changed, or sync less often."
    moved = seen.syncs
    row = next((row for row in seen.stages if row.stage is Stage.SYNC), None)
    if row is None or not seen.steady:
        return Lint(name, CANNOT_TELL, "no weight update was seen in a step", why, better)
    if math.isnan(row.share):
        says = "how long weights hold the step up is not known"
        return Lint(name, CANNOT_TELL, says, why, better)
    if row.share < SYNC_SHARE:
        says = f"weights hold the step up for {_percent(row.share)} of it"
        return Lint(name, NOT_FOUND, says, why, better)
    held = f"weights hold the step up for {_percent(row.share)} of it"
    if moved is None or not moved.bytes_per_update.n:
        return Lint(name, CANNOT_TELL, f"{held}; the bytes of an update are unknown", why, better)
    wire, full, pieces = seen.run.ask(
        "select sum(wire_bytes) filter (wire_bytes >= 0), sum(bytes) filter (wire_bytes >= 0), "
        "max(buckets) filter (buckets > 0) from raw_syncs where start_ns > 0 and bytes > 0"
    )[0]
    if wire is not None and wire < full / 2:
        return Lint(name, NOT_FOUND, f"{held}, but only what changed travels", why, better)
    if pieces and moved.bytes_per_update.mean / pieces >= _LEAST_PIECE_BYTES:
        return Lint(name, NOT_FOUND, f"{held}; it goes in {pieces} large pieces", why, better)
    many = bool(pieces) and pieces >= _MANY_PIECES  # each of which takes time, however small
    if not many and not bytes_take_time(seen):
        size = f"{moved.bytes_per_update.mean / 1e6:,.3g} MB"
        says = f"{held}, but not for the {size} of an update, which are little for a link"
        return Lint(name, NOT_FOUND, says, why, better)
    how = f" in {pieces} pieces" if many else ""
    by = f" by {' and '.join(moved.transports)}" if moved.transports else ""
    says = f"{held}: all {moved.bytes_per_update.mean / 1e6:,.0f} MB travel{how}{by}"
    says += " each time" if moved.transports != (word(Transport.FILE),) else " through files"
    return Lint(name, FOUND, says, why, better)


def _no_versions(seen: Seen) -> Lint:
    name = "asynchronous training without policy versions"
    why = "Learning cannot be told from noise of stale data: the ratio is of unknown policies."
    better = "Record the policy version of each sample, first and last token, and its lag."
    lags = seen.staleness
    placement = seen.composition.placement if seen.composition else ""
    if not lags.trajectories:
        says = "nobody recorded which samples were trained on"
        return Lint(name, CANNOT_TELL, says, why, better)
    unknown = lags.trajectories - lags.known
    if not unknown:
        return Lint(name, NOT_FOUND, "the version of every trained sample is known", why, better)
    part = _percent(unknown / lags.trajectories)
    says = f"the version of {part} of the trained samples is unknown"
    if placement in ("colocated", "disaggregated"):
        return Lint(name, NOT_FOUND, f"{says}; {placement} takes turns", why, better)
    if placement in ("one-step-off", "async"):
        return Lint(name, FOUND, f"{says}, in a placement that is {placement}", why, better)
    return Lint(name, CANNOT_TELL, f"{says}, and so is the placement", why, better)


def _silent_drops(seen: Seen) -> Lint:
    """Samples without a fate that are surely longer than those with one, or were cut off."""
    name = "dropping long samples silently"
    why = "Long reasoning is trained away."
    better = "Make time limits and length filters explicit, and record each drop with its reason."
    rows = seen.run.ask_columns("""
        select is_met, response_tokens::double, coalesce(finish, -1) from sample_lives
        where is_generated and trajectory is not null and response_tokens is not null
    """)
    used, tokens, finish = (np.ma.filled(np.ma.asarray(c), 0) for c in rows.values())
    used = used.astype(np.bool_)
    if not used.any():
        says = "nobody recorded what became of the samples"
        return Lint(name, CANNOT_TELL, says, why, better)
    gone = ~used
    cut = gone & np.isin(finish, (int(Finish.ABORT), int(Finish.TIMEOUT), int(Finish.LENGTH)))
    part = float(gone.mean())
    longer = gone.sum() >= _FEWEST and tokens[gone].mean() > tokens[used].mean()
    if part < _SILENT_SHARE or gone.sum() < _FEWEST:
        says = f"{_percent(part)} of the samples have no recorded fate"
        return Lint(name, NOT_FOUND, says, why, better)
    long, usual = tokens[gone].mean(), tokens[used].mean()
    lengths = f"{long:,.0f} tokens long in the mean, the others {usual:,.0f}"
    if longer and _distance(tokens[gone], tokens[used]) > 1:
        says = f"{_percent(part)} of the samples vanish without a reason, {lengths}"
        says += f"; {_percent(float(cut.sum() / gone.sum()))} of them were cut off"
        return Lint(name, FOUND, says, why, better)
    says = f"{_percent(part)} of the samples have no recorded fate, and are not longer: {lengths}"
    return Lint(name, NOT_FOUND, says, why, better)


def _distance(one: np.typing.NDArray[np.float64], other: np.typing.NDArray[np.float64]) -> float:
    """Kolmogorov and Smirnov's distance over its limit at 1 %: above 1 the two surely differ."""
    at = np.concatenate([one, other])
    below = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (one, other)]
    limit = _APART * math.sqrt(1 / len(one) + 1 / len(other))
    return float(np.abs(below[0] - below[1]).max()) / limit


def _retokenized(seen: Seen) -> Lint:
    name = "making token ids anew from text"
    why = "Ids and log-probs drift from what was sampled: the loss and every ratio are off."
    better = "Keep token ids and log-probs where the server generates them."
    kept = seen.kept
    if not kept.ids_known:
        says = "whether token ids were kept was not recorded"
        return Lint(name, CANNOT_TELL, says, why, better)
    lost = 1 - kept.ids_kept / kept.ids_known
    says = f"token ids of {_percent(lost)} of the trained samples were not kept"
    return Lint(name, FOUND if lost > 0 else NOT_FOUND, says, why, better)


def _no_isolation(seen: Seen) -> Lint:
    """Failures that are of some environments or reward workers, and not of others."""
    name = "environments without isolation"
    why = "One flaky sandbox poisons throughput and labels."
    better = "Hermetic sandboxes, retries, deterministic artifacts, logs of verifiers."
    broken = f"({int(Finish.TIMEOUT)}, {int(Finish.ERROR)})"
    by_env = seen.run.ask(
        f"select environment, count(*), count(*) filter (finish in {broken}) from raw_trajectories "
        "where start_ns > 0 and end_ns > 0 and environment <> -1 group by 1"
    )
    by_worker = seen.run.ask(
        f"select process, count(*), count(*) filter (outcome > {int(Outcome.OK)}) from raw_rewards "
        "where start_ns > 0 group by 1"
    )
    if not by_env and not by_worker:
        return Lint(name, CANNOT_TELL, "no environment and no verdict was recorded", why, better)
    for where, rows in (("environments", by_env), ("reward workers", by_worker)):
        worst, share, others = _uneven([(n, bad) for _, n, bad in rows])
        if worst:
            says = f"failures stick to some {where}: {_percent(share)} in the worst, "
            return Lint(name, FOUND, f"{says}{_percent(others)} in the others", why, better)
    failed = sum(bad for _, _, bad in (*by_env, *by_worker))
    total = sum(n for _, n, _ in (*by_env, *by_worker))
    says = f"{failed:,} of {total:,} failed, nowhere more than by chance"
    return Lint(name, NOT_FOUND, says, why, better)


def _uneven(rows: list[tuple[int, int]]) -> tuple[bool, float, float]:
    """`(whether failures surely differ between rows, share in the worst, share in the others)`: by
    chi-squared, three standard deviations of it above its mean."""
    n = np.array([row[0] for row in rows], np.float64)
    bad = np.array([row[1] for row in rows], np.float64)
    if len(rows) < 2 or not bad.sum() or bad.sum() == n.sum():
        return False, 0.0, 0.0
    rate = bad.sum() / n.sum()
    chi = float((((bad - n * rate) ** 2) / (n * rate * (1 - rate))).sum())
    freedom = len(rows) - 1
    worst = int(np.argmax(bad / n))
    others = float((bad.sum() - bad[worst]) / (n.sum() - n[worst]))
    sure = chi > freedom + 3 * math.sqrt(2 * freedom) + 4 and bad[worst] >= 5
    return sure, float(bad[worst] / n[worst]), others


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 or not share else f"{100 * share:.1f} %"
