"""Tables that somebody wrote, in TOML or JSON, held to a schema. Standard library only.

A schema has a rule for each key ("*": for any other): a table of rules, a list of one such table
(for a list of tables), a kind of `_KINDS`, some words, or from where to where a number makes sense,
whole where these are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as shown
from typing import Any, NoReturn

from rltrace.trace.errors import WrongUsage

Schema = Mapping[str, Any]
_MOST_WHOLE = 1 << 62


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and isinstance(value, bool) == (kinds == (bool,))


def _are(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and {*map(type, value)} <= {*kinds}


def _are_counts(value: Any) -> bool:
    return _are(int)(value) and bool(value) and min(value) >= 0 and max(value) < _MOST_WHOLE


_KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "text": (_is(str), "a text"),
    "said": (_is(str, int, float), "a text or a number"),  # a number is taken as its text
    "flag": (_is(bool), "true or false"),
    "fact": (lambda value: True, "anything"),
    "texts": (_are(str), "a list of texts"),
    "counts": (_are_counts, "a list of whole numbers that are not negative"),
    "figures": (_are(int, float, type(None)), "a list of numbers, null where one is unknown"),
}


def checked(
    schema: Schema, said: Mapping[str, Any], where: str, above: str = "", by_us: bool = False
) -> dict[str, Any]:
    """What a table states, of the kinds of its schema. `where` (a file) and `above`, the table's
    name, are for errors. `by_us`: rltrace wrote it, so nothing is missing, and what is not known is
    of a later version. Errors: `RltraceError` (wrong usage), one sentence, for anything else."""
    found, prefix = {}, f"{above}." if above else ""
    for key, value in said.items():
        rule = schema.get(key, schema.get("*"))
        if rule is not None:
            found[key] = _fitting(rule, value, where, f"{prefix}{key}", by_us)
        elif not by_us:
            what = f"table [{prefix}{key}]" if isinstance(value, Mapping) else f"{prefix}{key}"
            refuse(where, f"there is no {what}; known are {', '.join(schema)}")
    if by_us and (missing := schema.keys() - {*said, "*"}):
        refuse(where, f"{prefix}{min(missing)} is missing")
    return found


def _fitting(rule: Any, value: Any, where: str, name: str, by_us: bool) -> Any:
    if isinstance(rule, Mapping):
        if not isinstance(value, Mapping):
            refuse(where, f"{name} must be a table, [{name}], and is {shown(value)}")
        return checked(rule, value, where, name, by_us)
    if isinstance(rule, str):
        fits, takes = _KINDS[rule]
        if not fits(value):
            refuse(where, f"{name} must be {takes}, not {shown(value)}")
        return str(value) if rule == "said" else value
    least, most = rule[0], rule[-1]
    if isinstance(least, Mapping):
        if not isinstance(value, list):
            refuse(where, f"{name} must be a list of tables, and is {shown(value)}")
        return [_fitting(least, one, where, f"{name}[{i}]", by_us) for i, one in enumerate(value)]
    if isinstance(least, str):
        if value not in rule:
            refuse(where, f"{name} must be one of {', '.join(rule)}, not {shown(value)}")
        return value
    if not _is(int, float)(value):
        refuse(where, f"{name} must be a number, not {shown(value)}")
    if not least <= value <= most:
        refuse(where, f"{name} must be from {least:,} to {most:,}, and is {shown(value)}")
    if isinstance(least, int) and value != round(value):
        refuse(where, f"{name} must be a whole number, not {value:g}")
    return type(least)(value)


def refuse(where: str, why: str) -> NoReturn:
    """Errors: `RltraceError`, which begins with `where` (a file, say) if that is anything."""
    raise WrongUsage(f"{where}: {why}" if where else why)
