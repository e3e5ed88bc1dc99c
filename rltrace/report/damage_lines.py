"""Files that could not be read whole, in words: said first, since every figure is short of them."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.damage import Damaged
from rltrace.report import units
from rltrace.report.layout import listed

_MOST = 3


def damage_lines(found: tuple[Damaged, ...]) -> Iterator[str]:
    """One sentence for each process, up to a few."""
    for one in found[:_MOST]:
        pid = "" if one.pid < 0 else f" (pid {one.pid} on {one.host})"
        yield (
            f"what {one.role or 'a process'}{pid} recorded is cut or damaged "
            f"({listed(list(one.tables))}): figures are of the rows before that"
        )
    if len(found) > _MOST:
        others = units.plural(len(found) - _MOST, "more process")
        yield f"what {others} recorded is cut or damaged: `rltrace info` lists the files"
