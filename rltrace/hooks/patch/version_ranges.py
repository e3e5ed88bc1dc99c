"""Version ranges such as `>=0.6,<0.10`, without `packaging`, which a job may not have."""

from __future__ import annotations

import re
from operator import eq, ge, gt, le, lt, ne

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_HOLDS = {">=": ge, "<=": le, "==": eq, "!=": ne, ">": gt, "<": lt}
_CLAUSE = re.compile(r"\s*(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)\s*")


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version lies in a range. An unknown version does, and so does every version in an
    empty range; suffixes (`rc1`, `.post2`, `+cpu`) do not count. Errors: `ValueError` for a range
    that cannot be read."""
    found = _NUMBERS.match(version)
    if not wanted or found is None:
        return True
    have = _numbers(found.group())
    for clause in wanted.split(","):
        parts = _CLAUSE.fullmatch(clause)
        if parts is None:
            raise ValueError(f"{wanted!r} is no version range such as '>=0.6,<0.10'")
        sign, limit = parts.group(1), _numbers(parts.group(2))
        length = max(len(have), len(limit))
        a, b = ([*n, *[0] * (length - len(n))] for n in (have, limit))
        if not _HOLDS[sign](a, b):
            return False
    return True


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(".")]
