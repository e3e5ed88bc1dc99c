"""Anti-patterns, looked for in the trace: each found, not found, or what would tell."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rltrace.analysis.fixes import bytes_take_time
from rltrace.analysis.run_analysis import RunAnalysis
from rltrace.trace.vocabulary import Finish, Outcome, Stage, Transport, word

FOUND, NOT_FOUND, CANNOT_TELL = "found", "not found", "cannot tell"

_SYNC_SHARE = 0.1
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


def lint(analysis: RunAnalysis) -> tuple[Lint, ...]:
    looks = {
        "picking a framework before measuring the rollout wall": (
            _unmeasured,
            "The algorithm is rarely what binds.",
            "Trace actors, rewards, learner and weights apart on a small run.",
        ),
        "naive full reload of the weights at each update": (
            _full_reload,
            "It can take the whole step of a large model.",
            "Reshard in place, send in buckets or what changed, or sync less often.",
        ),
        "asynchronous training without policy versions": (
            _no_versions,
            "Learning cannot be told from noise of stale data: the ratio is of unknown policies.",
            "Record the policy version of each sample, first and last token, and its lag.",
        ),
        "dropping long samples silently": (
            _silent_drops,
            "Long reasoning is trained away.",
            "Make time limits and length filters explicit, and record each drop with its reason.",
        ),
        "making token ids anew from text": (
            _retokenized,
            "Ids and log-probs drift from what was sampled: the loss and every ratio are off.",
            "Keep token ids and log-probs where the server generates them.",
        ),
        "environments without isolation": (
            _no_isolation,
            "One flaky sandbox poisons throughput and labels.",
            "Hermetic sandboxes, retries, deterministic artifacts, logs of verifiers.",
        ),
    }
    return tuple(Lint(name, *look(analysis), *reason) for name, (look, *reason) in looks.items())


def _unmeasured(analysis: RunAnalysis) -> tuple[str, str]:
    stages = {row.stage for row in analysis.stages}
    need = (Stage.ROLLOUT, Stage.TRAIN, Stage.SYNC)
    if unseen := [word(stage) for stage in need if stage not in stages]:
        return CANNOT_TELL, f"not measured apart: {', '.join(unseen)}"
    return NOT_FOUND, "generation, training and weight movement are each measured"


def _full_reload(analysis: RunAnalysis) -> tuple[str, str]:
    moved = analysis.syncs
    row = next((row for row in analysis.stages if row.stage is Stage.SYNC), None)
    if row is None or not analysis.steady:
        return CANNOT_TELL, "no weight update was seen in a step"
    if math.isnan(row.share):
        return CANNOT_TELL, "how long weights hold the step up is not known"
    held = f"weights hold the step up for {_percent(row.share)} of it"
    if row.share < _SYNC_SHARE:
        return NOT_FOUND, held
    if moved is None or not moved.bytes_per_update.n:
        return CANNOT_TELL, f"{held}; the bytes of an update are unknown"
    wire, full, pieces = analysis.run.ask(
        "select sum(wire_bytes) filter (wire_bytes >= 0), sum(bytes) filter (wire_bytes >= 0), "
        "max(buckets) filter (buckets > 0) from raw_syncs where start_ns > 0 and bytes > 0"
    )[0]
    if wire is not None and wire < full / 2:
        return NOT_FOUND, f"{held}, but only what changed travels"
    if pieces and moved.bytes_per_update.mean / pieces >= _LEAST_PIECE_BYTES:
        return NOT_FOUND, f"{held}; it goes in {pieces} large pieces"
    many = bool(pieces) and pieces >= _MANY_PIECES  # each of which takes time, however small
    if not many and not bytes_take_time(analysis):
        size = f"{moved.bytes_per_update.mean / 1e6:,.3g} MB"
        return (
            NOT_FOUND,
            f"{held}, but not for the {size} of an update, which are little for a link",
        )
    how = f" in {pieces} pieces" if many else ""
    by = f" by {' and '.join(moved.transports)}" if moved.transports else ""
    says = f"{held}: all {moved.bytes_per_update.mean / 1e6:,.0f} MB travel{how}{by}"
    each = " through files" if moved.transports == (word(Transport.FILE),) else " each time"
    return FOUND, says + each


def _no_versions(analysis: RunAnalysis) -> tuple[str, str]:
    lags = analysis.staleness
    if not lags.trajectories:
        return CANNOT_TELL, "nobody recorded which samples were trained on"
    unknown = lags.trajectories - lags.known
    if not unknown:
        return NOT_FOUND, "the version of every trained sample is known"
    says = (
        f"the version of {_percent(unknown / lags.trajectories)} of the trained samples is unknown"
    )
    if analysis.placement in ("colocated", "disaggregated"):
        return NOT_FOUND, f"{says}; {analysis.placement} takes turns"
    if analysis.placement in ("one-step-off", "async"):
        return FOUND, f"{says}, in a placement that is {analysis.placement}"
    return CANNOT_TELL, f"{says}, and so is the placement"


def _silent_drops(analysis: RunAnalysis) -> tuple[str, str]:
    """Samples without a fate that are surely longer than those with one, or were cut off."""
    rows = analysis.run.ask_columns("""
        select is_met, response_tokens::double, coalesce(finish, -1) from sample_lives
        where is_generated and trajectory is not null and response_tokens is not null
    """)
    used, tokens, finish = (np.ma.filled(np.ma.asarray(c), 0) for c in rows.values())
    used = used.astype(np.bool_)
    if not used.any():
        return CANNOT_TELL, "nobody recorded what became of the samples"
    gone = ~used
    part = _percent(float(gone.mean()))
    if gone.mean() < _SILENT_SHARE or gone.sum() < _FEWEST:
        return NOT_FOUND, f"{part} of the samples have no recorded fate"
    long, usual = tokens[gone].mean(), tokens[used].mean()
    lengths = f"{long:,.0f} tokens long in the mean, the others {usual:,.0f}"
    if long > usual and _distance(tokens[gone], tokens[used]) > 1:
        cut = np.isin(finish[gone], (Finish.ABORT, Finish.TIMEOUT, Finish.LENGTH))
        says = f"{part} of the samples vanish without a reason, {lengths}"
        return FOUND, f"{says}; {_percent(float(cut.mean()))} of them were cut off"
    return NOT_FOUND, f"{part} of the samples have no recorded fate, and are not longer: {lengths}"


def _distance(one: np.typing.NDArray[np.float64], other: np.typing.NDArray[np.float64]) -> float:
    """Kolmogorov and Smirnov's distance over its limit at 1 %: above 1 the two surely differ."""
    at = np.concatenate([one, other])
    below = [np.searchsorted(np.sort(x), at, side="right") / len(x) for x in (one, other)]
    limit = _APART * math.sqrt(1 / len(one) + 1 / len(other))
    return float(np.abs(below[0] - below[1]).max()) / limit


def _retokenized(analysis: RunAnalysis) -> tuple[str, str]:
    kept = analysis.kept
    if not kept.ids_known:
        return CANNOT_TELL, "whether token ids were kept was not recorded"
    lost = 1 - kept.ids_kept / kept.ids_known
    says = f"token ids of {_percent(lost)} of the trained samples were not kept"
    return FOUND if lost > 0 else NOT_FOUND, says


def _no_isolation(analysis: RunAnalysis) -> tuple[str, str]:
    """Failures that are of some environments or reward workers, and not of others."""
    broken = f"({int(Finish.TIMEOUT)}, {int(Finish.ERROR)})"
    by_env = analysis.run.ask(
        f"select count(*), count(*) filter (finish in {broken}) from raw_trajectories "
        "where start_ns > 0 and end_ns > 0 and environment <> -1 group by environment"
    )
    by_worker = analysis.run.ask(
        f"select count(*), count(*) filter (outcome > {int(Outcome.OK)}) from raw_rewards "
        "where start_ns > 0 group by process"
    )
    if not by_env and not by_worker:
        return CANNOT_TELL, "no environment and no verdict was recorded"
    for where, rows in (("environments", by_env), ("reward workers", by_worker)):
        worst, share, others = _uneven(rows)
        if worst:
            says = f"failures stick to some {where}: {_percent(share)} in the worst, "
            return FOUND, f"{says}{_percent(others)} in the others"
    total, failed = (sum(numbers) for numbers in zip(*by_env, *by_worker, strict=True))
    return NOT_FOUND, f"{failed:,} of {total:,} failed, nowhere more than by chance"


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
