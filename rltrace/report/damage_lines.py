"""Files that could not be read whole, in words: said first, since every figure is short of them."""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.analysis.damage import Damaged
from rltrace.report import units
from rltrace.report.layout import listed
from rltrace.trace.dropped import Dropped
from rltrace.trace.schema import CAPTURED_TOKENS

_MOST = 3


def dropped_lines(dropped: Dropped | None) -> Iterator[str]:
    """What was dropped to keep the run small, a sentence each; nothing where nothing was."""
    if dropped is None:
        return
    tokens = dropped.rows.get(CAPTURED_TOKENS.name, 0)
    where = " and are at its URL" if dropped.is_shipped else ""
    if details := sum(dropped.rows.values()) - tokens:
        yield (
            f"the oldest details were dropped to keep the run small{where} "
            f"({units.plural(details, 'row')}): figures are of what began later"
        )
    if tokens:
        yield (
            f"captured tokens were dropped to keep the run small{where} "
            f"({units.plural(tokens, 'token')}): those of the oldest samples are not there"
        )


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
