"""What the run is, how it ended, what is wrong with it, and how its data is, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rltrace.analysis.alarms.alarm import CRASH
from rltrace.report import units
from rltrace.report.layout import listed, pid_on
from rltrace.trace.job_devices import AGENT
from rltrace.trace.read.clock_alignment import clock_time

if TYPE_CHECKING:
    from rltrace.analysis.figures.coverage import AsOf
    from rltrace.analysis.summary import Summary
    from rltrace.trace.read.run_losses import Damaged

_MOST = 3  # processes that are named
_NOW_S = 1.0  # what is younger is as of now
_TOKENS = (
    "this run holds the token ids of prompts and responses (--capture-tokens): whoever has it can "
    "read what they say"
)
_NO_TOKENS = (
    "--capture-tokens was asked for, and this run holds no token ids: what recorded its samples "
    "had none at hand (docs/reference/adapters.md), or they were deleted"
)


def facts(summary: Summary) -> Iterator[str]:
    """What the run is: two lines."""
    run, steps = summary.run, summary.steps
    yield run.command or run.id
    parts = [run.framework] if run.framework else []
    if not steps.whole_run:
        warm = f" ({len(steps.warmup)} of warm-up)" if steps.warmup else ""
        which = which_steps(summary) + which_phase(summary)
        parts.append(f"{units.plural(steps.complete, 'step')}{warm}{which}")
    if summary.goodput is not None and summary.goodput.devices.count:
        devices = summary.goodput.devices
        name = f" ({devices.name})" if devices.name else ""
        parts.append(f"{units.plural(devices.count, devices.kind)}{name}")
    if run.imported:
        parts.append(f"imported ({run.imported})")
    else:
        processes, nodes = units.plural(run.processes, "process"), units.plural(run.nodes, "node")
        parts.append(f"{processes} of the job on {nodes}")
    parts.append(units.plural(run.spans, "span"))
    if run.lasted_s is not None and not run.imported:
        parts.append(f"lasted {units.lasted(run.lasted_s, run.shown_s)}")
    else:
        is_told = "told" if run.imported else "recorded"
        how = is_told if run.shown_since_ns <= run.start_ns else "shown"
        parts.append(f"{units.seconds(run.recorded_s)} {how}")
    yield " · ".join(parts)


def which_steps(summary: Summary) -> str:
    """` (1 to 2, no others)`, where only some steps were asked for."""
    if not summary.run.some_steps_only:
        return ""
    numbers = [one.step for one in summary.steps.times]
    return f" ({units.between(str(min(numbers)), str(max(numbers)))}, no others)"


def which_phase(summary: Summary) -> str:
    """`, phase 2 of 2 (--phase N: another)`, where the run has several."""
    shown, of = summary.run.phase, len(summary.steps.phases)
    return f", phase {shown} of {of} (--phase N: another)" if shown else ""


def warnings(summary: Summary) -> Iterator[str]:
    """What is wrong with the run, one sentence each: a crash, a hang, a process that died."""
    run = summary.run
    ended = [one for one in summary.health.alarms if one.kind == CRASH]
    if run.exit_code:
        yield from (f"{one.says}: figures are of what it did before" for one in ended)
    elif ended:
        yield from (one.says for one in ended)
    elif run.as_of is not None:
        yield from going_lines(run.as_of)
    elif not run.ended:
        yield "the run has no end: it is still going on, or was killed together with rltrace"
    yield from outlived_lines(run.lasted_s, run.command_s)
    yield from (alarm.says for alarm in summary.health.alarms if alarm.kind != CRASH)
    yield from _stopped(summary)
    yield from damage_lines(summary.coverage.damaged)
    going, end = "in progress for", "the end"
    if run.ended:
        going, end = "was in progress, when the job ended, for", "that"
    for number, since_s in summary.steps.in_progress:
        yield f"step {number} {going} {units.seconds(since_s)}"
    for span in summary.coverage.in_progress:
        if span.stage == "step":
            continue
        where = units.plural(span.processes, span.role or "process")
        text = f"“{span.name}” ({span.stage}) {going} {units.seconds(span.open_s)}"
        silent_s = span.open_s - span.last_sign_s
        if silent_s > 1 and span.last_sign_s == 0:
            text += " without a sign of life"
        elif silent_s > max(1.0, 0.05 * span.open_s):
            text += f", the last sign of life {units.seconds(silent_s)} before {end}"
        yield f"{text} ({where})"
    if run.token_ids is not None:
        yield _TOKENS if run.token_ids else _NO_TOKENS


def _stopped(summary: Summary) -> Iterator[str]:
    stopped = summary.coverage.stopped
    for one in stopped[:_MOST]:
        at_s = one.after_start_s
        when = "" if math.isnan(at_s) else f" {units.seconds(at_s)} after the start"
        why = f" ({one.detail})" if one.detail else ""
        who = (one.role or "a process") + pid_on(one.pid, one.host)
        yield f"recording stopped in {who}{when}{why}"
    if len(stopped) > _MOST:
        others = units.plural(len(stopped) - _MOST, "more process")
        yield f"recording stopped in {others}: `rltrace info` lists them"
    if any(one.role != AGENT for one in stopped):
        numbers = [time.step for time in summary.steps.times]
        whole = "the time before, in which no step ended"
        if summary.steps.complete:
            whole = f"steps {numbers[0]} to {numbers[-1]}, which were whole by then"
            if len(numbers) == 1:
                whole = f"step {numbers[0]}, which was whole by then"
        missing = "where a process of the job stopped recording, rows are missing"
        yield f"{missing}: figures are of {whole}"


def damage_lines(found: tuple[Damaged, ...]) -> Iterator[str]:
    for one in found[:_MOST]:
        who = (one.role or "a process") + pid_on(one.pid, one.host)
        where = f"is cut or damaged ({listed(one.tables)})"
        yield f"what {who} recorded {where}: figures are of the rows before that"
    if len(found) > _MOST:
        others = units.plural(len(found) - _MOST, "more process")
        yield f"what {others} recorded is cut or damaged: `rltrace info` lists the files"


def going_lines(as_of: AsOf) -> Iterator[str]:
    """As of when a run is told that goes on, and which of its nodes say no more."""
    ago = f", {units.seconds(as_of.ago_s)} ago" if as_of.ago_s >= _NOW_S else ""
    if not as_of.silent_nodes:
        what = "what its nodes have shipped reaches until" if as_of.from_url else "it is told as of"
        yield f"the run has no end yet: {what} {clock_time(as_of.at_ns)}{ago}"
        return
    hosts = [f"{one.host} since {clock_time(one.since_ns)}" for one in as_of.silent_nodes]
    reach = f"what is here reaches until {clock_time(as_of.at_ns)}{ago}"
    why = "the node, its agent or its network is gone"
    yield f"nothing has come from {listed(hosts)}, and the run has no end ({reach}): {why}"


def outlived_lines(lasted_s: float | None, command_s: float | None) -> Iterator[str]:
    """That a job outlived its command, where it was recorded for longer than that took."""
    if lasted_s is not None and command_s is not None and lasted_s > command_s:
        ended, until = units.seconds(command_s), units.seconds(lasted_s)
        rest = f"what it had started was recorded until {until}"
        yield f"the job outlived its command, which ended after {ended}: {rest}"


# --- how its data is, what was not recorded, and what tracing cost: a line each

_SLIGHT = 0.005  # of the tokens: less is not worth a word
_MOST_KINDS = 3


def cells(summary: Summary) -> Iterator[tuple[str, str]]:
    """`(name, text)` of each; an empty text where there is nothing to say."""
    yield "staleness", _staleness(summary)
    yield "tokens", _tokens(summary)
    yield "samples", _samples(summary)
    yield "decode", _decode(summary)
    yield "latency", _latency(summary)
    yield "mean reward", _reward(summary)
    yield "goodput", _goodput(summary)
    yield "weight sync", _sync(summary)
    yield "not recorded", ", ".join(stage.name for stage in summary.coverage.unseen)
    yield "problems", _problems(summary)
    cost = summary.own_cost.share
    yield "overhead", "" if summary.run.imported or math.isnan(cost) else units.share(cost)


def _problems(summary: Summary) -> str:
    seen = summary.coverage
    told = [one for one in seen.problems if one.what != "no-gpu"]  # which stands at the top
    kinds = [f"{one.what} × {one.count}" if one.count > 1 else one.what for one in told]
    said = list(dict.fromkeys(kinds))
    if seen.never_hooked:
        said.append(f"never put in place: --hook {listed(seen.never_hooked)}")
    return f"{', '.join(said[:_MOST_KINDS])}: see --full" if said else ""


def _staleness(summary: Summary) -> str:
    lags, fresh = summary.staleness, summary.freshness
    if not lags.trajectories:
        return ""
    if not lags.known_uses:
        return "unknown: no policy version was recorded"
    text = "on policy (lag 0)"
    if lags.largest_lag:
        text = f"lag {units.number(lags.mean_lag)} versions in the mean, largest {lags.largest_lag}"
    ess = f", ESS {units.share(fresh.effective_share.value)}"
    return text if fresh.overall is None else text + ess


def _tokens(summary: Summary) -> str:
    goodput = summary.goodput
    if goodput is None or math.isnan(goodput.trained_share):
        return ""
    text = f"{units.share(goodput.trained_share)} trained on"
    if loss := next((loss for loss in goodput.losses if loss.share >= _SLIGHT), None):
        text += f", {units.share(loss.share)} {loss.reason}"
    trained = goodput.trained
    if trained.tokens and trained.zero_advantage_tokens:
        share = trained.zero_advantage_tokens / trained.tokens
        text += f"; {units.share(share)} of those zero advantage"
    return text


def _samples(summary: Summary) -> str:
    """What a log says of samples that no trace has."""
    logged, parts = summary.logged, []
    if reward := logged.get("reward"):
        came = f" → {units.number(reward.last)}" if reward.n > 1 else ""
        parts.append(f"reward {units.number(reward.first)}{came}")
    if tokens := logged.get("response_tokens"):
        parts.append(f"{units.count(tokens.mean)} tokens in the mean")
    if cut := logged.get("truncated"):
        parts.append(f"{units.share(cut.mean)} cut off")
    if none := logged.get("no_signal"):
        parts.append(f"{units.share(1 - none.mean)} of the groups carry a signal")
    if lag := logged.get("lag"):
        parts.append(f"lag {units.number(lag.mean)}")
    return ", ".join(parts)


def _decode(summary: Summary) -> str:
    figures = [one for wall in summary.verdict.walls for one in wall.evidence]
    rates = [units.count(one.value) for one in figures if one.name == "tokens while generating"]
    parts = [f"{rate} tokens/s while generating" for rate in rates]
    slots, tokens = summary.tail.slots, summary.tail.response_tokens
    if slots is not None:
        parts.append(f"{units.share(slots.used_share.mean)} of the engines' slots in use")
    if tokens.n > 1:
        parts.append(f"length p95/p50 {units.ratio(tokens.tail_ratio)}")
    return ", ".join(parts)


def _latency(summary: Summary) -> str:
    times = ("a sample", summary.tail.latency_s), ("its reward", summary.tail.reward_latency_s)
    timed = [(name, units.seconds(s.p50), units.seconds(s.p95)) for name, s in times if s.n > 1]
    return ", ".join(f"{name} {p50} (p95 {p95})" for name, p50, p95 in timed)


def _reward(summary: Summary) -> str:
    reward, signal = summary.reward, summary.signal
    parts = []
    if reward is not None:
        gain, first, last = reward.gain_per_device_hour, reward.first_reward, reward.last_reward
        trend = " (no clear trend)" if gain.contains(0) else ""
        if (gain.low > 0 and last > first) or (gain.high < 0 and last < first):
            trend = " (rises)" if gain.low > 0 else " (falls)"
        parts.append(f"{units.number(first)} → {units.number(last)}{trend}")
    if signal is not None and signal.known:
        parts.append(f"{units.share(signal.share)} of the groups carry a signal")
    return ", ".join(parts)


def _goodput(summary: Summary) -> str:
    goodput = summary.goodput
    if goodput is None:
        lacks = "unknown: no use of a sample by the learner was recorded"
        return "" if summary.run.no_rollout else lacks
    if math.isnan(rate := goodput.useful_tokens_per_device_s):
        return ""
    text = f"{units.count(rate)} useful tokens per {goodput.devices.kind}-second"
    per_usd = goodput.useful_tokens_per_usd()
    return text if math.isnan(per_usd) else f"{text}, {units.count(per_usd)} per US$"


def _sync(summary: Summary) -> str:
    syncs = summary.syncs
    if syncs is None or not syncs.updates:
        return ""
    size = f", {units.size(syncs.bytes_per_update.mean)}" if syncs.bytes_per_update.n else ""
    return f"{units.seconds(syncs.update_s.mean)} an update{size}"
