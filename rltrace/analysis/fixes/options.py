"""Which options make a move in a job, and the values that they get."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rltrace.analysis.figures.devices import framework_of
from rltrace.analysis.fixes import job_settings
from rltrace.analysis.fixes.job_settings import forms
from rltrace.analysis.fixes.playbook import PREDICTED, FrameworkSetting, Move, settings_for
from rltrace.analysis.whatif.workload import number_of
from rltrace.trace.read.framework_figure import ANY_VERSION
from rltrace.trace.read.run import OpenedRun

_RULE = re.compile(r"([xp])([0-9.]+)")


@dataclass(frozen=True)
class KnownJob:
    """`current`: the values of options as far as they are known; `stated`: those of all, where the
    job states them (empty: it does not); `config`: the name of its configuration."""

    framework: str
    version: str
    current: Mapping[str, Any]
    stated: Mapping[str, Any]
    config: str


def known_job(run: OpenedRun) -> KnownJob:
    framework, version = framework_of(run)
    version = version or ANY_VERSION
    current = job_settings.current_settings(run, framework, version)
    config = job_settings.configuration(run, framework, current)
    return KnownJob(framework, version, current, job_settings.stated_settings(run), config)


def options_for(
    move: Move, job: KnownJob, moved: str, spans: Sequence[str] = ()
) -> tuple[tuple[FrameworkSetting, ...], str]:
    """Settings that make a move in the job and that it does not have, those first that its version
    surely has, then those that follow the lever: each with the value that it gets, and in `needs`
    what has to be set with it and is not. Then the program that reads such settings, if only
    another one surely does. `moved` is what the move's lever was moved to, `spans` the long ones,
    of which a setting has to shorten one (empty: any)."""

    def place(one: FrameworkSetting) -> tuple[bool, bool, int]:
        shortest = min(map(spans.index, shortened(one)), default=0)
        return bool(one.if_in), not one.follows, shortest

    def shortened(one: FrameworkSetting) -> list[str]:
        return [span for span in one.span if span in spans]

    known = settings_for(job.framework, job.version, move)
    fit = [one for one in known if one.is_of(job.stated, job.current)]
    here = [one for one in fit if job.stated or one.is_in(job.config)]
    slow = [one for one in here if not (one.span and spans) or shortened(one)]
    found = not_yet(tuple(sorted(slow, key=place)), moved, job.current)
    is_sure = any(not one.if_in for one in here)
    other = [one for one in known if not (is_sure or one.is_in(job.config))]
    return found, other[0].program + _of_versions(job, other[0]) if other else ""


def not_yet(
    settings: tuple[FrameworkSetting, ...], moved: str, current: Mapping[str, Any]
) -> tuple[FrameworkSetting, ...]:
    """Of the settings that make a move those that the run does not have, or not that far, each with
    what it needs and the run lacks."""

    def lacks(one: FrameworkSetting) -> dict[str, Any]:
        exactly = {k: set_to(k, v, moved, current) for k, v in one.exactly.items()}
        unmet = {k: v for k, v in one.needs.items() if not _meets(current.get(k), v)}
        return unmet | {k: v for k, v in exactly.items() if current.get(k) != v}

    def valued(one: FrameworkSetting) -> FrameworkSetting:
        value = set_to(one.option, one.value, moved, current)
        return replace(one, value=value, needs=lacks(one))

    return tuple(s for s in map(valued, settings) if not s.is_reached(current.get(s.option)))


def set_to(option: str, value: Any, moved: str, current: Mapping[str, Any]) -> Any:
    """What an option is set to. Where its value follows the lever, that is so many times what it is
    now ("x2"; the rule itself where that is not known), or what the lever was moved to."""
    if value != PREDICTED:
        return value
    now, rule = current.get(option), _RULE.fullmatch(moved)
    if rule is None:
        return moved if math.isnan(number_of(moved)) else int(number_of(moved))
    if rule[1] == "p" or isinstance(now, bool) or not isinstance(now, int | float):
        return moved
    times = now * float(rule[2])
    return round(times) if isinstance(now, int) else times


def _meets(now: Any, needed: Any) -> bool:
    """Whether what an option is now serves as well as the example: numbers and places are the run's
    own affair, but a number of one may be the lack of what is needed."""
    if isinstance(needed, str) and set(needed) & set("./:"):
        return bool(now)
    numbers = isinstance(now, int | float) and isinstance(needed, int | float)
    if numbers and not isinstance(now, bool) and not isinstance(needed, bool):
        return bool(now >= min(needed, 2))
    return bool(now == needed)


def is_rule(value: object) -> bool:
    """Whether it is a rule such as "x2" or "p95" that could not be worked out."""
    return isinstance(value, str) and bool(_RULE.fullmatch(value))


def in_words(rule: str) -> str:
    """`x2`: "twice what it is"."""
    kind, number = rule[0], rule[1:]
    if kind == "p":
        return f"the length that {number} % of the responses keep within"
    return "twice what it is" if number == "2" else f"{number} times what it is"


def _of_versions(job: KnownJob, setting: FrameworkSetting) -> str:
    """In which versions an option is, where the job's may be another."""
    said = setting.if_in.replace(">=", "from ").replace("<", "before ").replace(",", ", ")
    return f" ({job.framework}: {said})" if said else ""


def offered(job: KnownJob, setting: FrameworkSetting, needs: Mapping[str, Any]) -> str:
    settings = {setting.option: setting.value, **needs}
    return printed(job.framework, settings) + _of_versions(job, setting)


def printed(framework: str, settings: Mapping[str, Any]) -> str:
    """Settings as the framework takes them on its command line, or in its file."""
    form = forms()[framework]
    plain = {option: value for option, value in settings.items() if not is_rule(value)}
    rules = (f"{form.word(o)} ({in_words(v)})" for o, v in settings.items() if o not in plain)
    return " ".join([*form.line(plain), *rules])
