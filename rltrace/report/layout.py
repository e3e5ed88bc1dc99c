"""The shapes that reports are made of, whatever they are printed on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_EIGHTHS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True)
class TableColumn:
    """A column, left out on pages of fewer than `least_width` characters. `copied`: its words are
    never broken, so that it goes below a table that is too narrow."""

    title: str
    right: bool = False
    least_width: int = 0
    copied: bool = False


def numbers(*titles: str | tuple[str, int]) -> tuple[TableColumn, ...]:
    """Columns of numbers, which stand on the right: a title each, or that and the least width."""
    told = ((title, 0) if isinstance(title, str) else title for title in titles)
    return tuple(TableColumn(title, right=True, least_width=least) for title, least in told)


@dataclass(frozen=True)
class Grid:
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[str, ...], ...]


def table(rows: Iterable[Sequence[str]], *columns: TableColumn | str) -> Grid | None:
    """Rows below their columns; a title alone is a column of words. None where there is no row."""
    cells = tuple(map(tuple, rows))
    titled = tuple(TableColumn(one) if isinstance(one, str) else one for one in columns)
    return Grid(titled, cells) if cells else None


@dataclass(frozen=True)
class Section:
    """A part of the report: lines, then a table, then notes in a smaller voice."""

    title: str
    lines: tuple[str, ...] = ()
    grid: Grid | None = None
    notes: tuple[str, ...] = ()


class Bar(str):
    """A bar of characters, `length` of them long; empty where there is nothing."""

    length: float


def bar(share: float, width: int) -> Bar:
    """A bar of `share` (0 to 1) of `width` characters, in eighths; the least is still seen."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    if share > 0:
        eighths = max(eighths, 1)
    whole, rest = divmod(eighths, 8)
    drawn = Bar("█" * whole + (_EIGHTHS[rest] if rest else ""))
    drawn.length = eighths / 8
    return drawn


def labelled(name: str, symbol: str) -> str:
    """`rollout (τ_R)`, or the name alone where it has no symbol."""
    return f"{name} ({symbol})" if symbol else name


def of_rank(role: str, rank: int | None) -> str:
    """`rollout 3`, or the role alone."""
    return role if rank is None else f"{role} {rank}"


def pid_on(pid: int, host: str) -> str:
    """` (pid 7 on node-0)`; empty where the process is not known (-1)."""
    return "" if pid < 0 else f" (pid {pid} on {host})"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def brief(lines: Sequence[str], most: int) -> list[str]:
    """The first lines, and how many more there are."""
    more = [f"{len(lines) - most} more: --json"] if lines[most:] else []
    return [*lines[:most], *more]


def lowered(text: str) -> str:
    """With a small first letter, to stand within a sentence; an abbreviation stays as it is."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def raised(text: str) -> str:
    return text[:1].upper() + text[1:]
