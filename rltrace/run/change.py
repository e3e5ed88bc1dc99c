"""A change that an experiment tries: which settings, and what they are predicted to gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltrace.analysis.command_form import form_of
from rltrace.analysis.devices import framework_of
from rltrace.analysis.stats.interval import Estimate
from rltrace.analysis.trial import FRESHNESS, GOODPUT, STEP
from rltrace.analysis.walls import wall
from rltrace.trace.errors import CANNOT_TELL, RltraceError, WrongUsage

if TYPE_CHECKING:
    from rltrace.analysis.fixes import Fix
    from rltrace.trace.run import Run


@dataclass(frozen=True)
class Change:
    """Settings to change, and what that is predicted to gain (None: nobody knows). `metric` says in
    what: "step", "freshness" or "goodput" (see `rltrace.analysis.trial`)."""

    name: str
    settings: Mapping[str, Any]
    predicted: Estimate | None = None
    metric: str = STEP


def change_of_fix(fixes: Sequence[Fix], number: int | None) -> Change:
    """The change that a fix of the verdict stands for: the `number`th (from 1) or, without one, the
    first whose setting is known and whose gain is predicted. Errors: `RltraceError`."""
    if number is None:
        able = [fix for fix in fixes if fix.setting and not _is_rule(fix.value)]
        if not able:
            raise RltraceError(
                "the verdict has no fix with a setting to try: give --set option=value", CANNOT_TELL
            )
        chosen = next((fix for fix in able if fix.goodput_gain is not None), able[0])
    elif 1 <= number <= len(fixes):
        chosen = fixes[number - 1]
    else:
        raise WrongUsage(f"there are {len(fixes)} fixes, not {number}")
    if not chosen.setting:
        raise RltraceError(
            f"no option of this framework makes the move {chosen.move!r}: give --set", CANNOT_TELL
        )
    if _is_rule(chosen.value):
        raise RltraceError(
            f"{chosen.setting} should be {chosen.value} of what it is, which the run does not "
            "state: give --set option=value",
            CANNOT_TELL,
        )
    settings = {**dict(chosen.needs), chosen.setting: chosen.value}
    name = f"{chosen.move} ({', '.join(f'{o}={v}' for o, v in settings.items())})"
    if chosen.gain is not None and not _pays_by_longer_steps(chosen):
        return Change(name, settings, chosen.gain, STEP)
    only_fresher = chosen.gain is None and chosen.wall == wall.FRESHNESS
    return Change(name, settings, chosen.goodput_gain, FRESHNESS if only_fresher else GOODPUT)


def change_of_words(words: Sequence[str]) -> Change:
    """The change that `option=value` words stand for. Errors: `RltraceError`."""
    settings: dict[str, Any] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals or not option:
            raise WrongUsage(f"--set {word!r} must be OPTION=VALUE")
        settings[option] = _value(value)
    return Change(", ".join(words), settings)


def refuse_what_takes_no_settings(run: Run) -> None:
    """Errors: `RltraceError` where nobody knows how the job of `run` would be told of a change."""
    if not run.meta.get("imported"):  # which has no command: `plan` says so
        form_of(framework_of(run)[0])


def refuse_unwell(alarms: Sequence[str]) -> None:
    """Errors: `RltraceError` for a run with an alarm: what it gained would mean nothing."""
    if alarms:
        raise RltraceError(
            f"no fix is tried, because of the run's alarm: {'; '.join(alarms)}; repair that first, "
            "or try a change of your own with --set",
            CANNOT_TELL,
        )


def same(text: str | None, stated: object, value: object) -> bool:
    """Whether a setting has a value already: as the command line has it (`text`), or as stated."""
    known = _value(text) if text is not None else stated
    return known is not None and (known == value or str(known) == str(value))


def _pays_by_longer_steps(fix: Fix) -> bool:
    """Whether its steps take longer and are worth it (more samples, more of which teach): then only
    goodput, which is noisier, shows what it gains."""
    step, goodput = fix.gain, fix.goodput_gain
    return step is not None and goodput is not None and step.value < 1 < goodput.value


def _is_rule(value: object) -> bool:
    """Whether it is a rule such as "x2" or "p95" that could not be worked out."""
    return isinstance(value, str) and value[:1] in ("x", "p") and value[1:].isdigit()


def _value(text: str) -> Any:
    """A number or a boolean where the text is one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
