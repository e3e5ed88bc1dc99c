"""Numbers of a log as columns of a trace can hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MOST = 1 << 31
_MOST_NS = 1 << 62  # so that two of them can be added


def whole(value: object) -> int | None:
    """A step's or a rank's number: a whole one, not negative, of 31 bits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    fits = 0 <= value < _MOST and value == int(value)
    return int(value) if fits else None


def ns(value: object, unit_ns: float = 1e9) -> int | None:
    """A time or a length, in units of so many ns, as ns."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not -_MOST_NS < value < _MOST_NS or not -_MOST_NS < value * unit_ns < _MOST_NS:
        return None  # NaN, too
    return round(value * unit_ns)


def is_real_ns(time_ns: int) -> bool:
    """Whether it is a Unix time that a trace can hold."""
    return 0 < time_ns < _MOST_NS


_MOST_NAMED = 5


def is_time(value: float) -> bool:
    """Whether a clock can have shown so many seconds."""
    return 0 <= value < 1e8


def counted(names: Mapping[str, int]) -> str:
    """Names with how often each occurs: `timing_s/gen (3), timing_s/ref (1)`."""
    shown = [f"{name} ({count})" for name, count in names.items()]
    more = [f"{len(shown) - _MOST_NAMED} more"] * (len(shown) > _MOST_NAMED)
    return ", ".join([*shown[:_MOST_NAMED], *more])


def first_of(values: Sequence[object], most: int = _MOST_NAMED) -> str:
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more
