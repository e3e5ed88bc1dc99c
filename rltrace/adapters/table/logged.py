"""A framework's own figures, read where it hands them to its logger."""

from __future__ import annotations

from typing import Any

from rltrace.hooks.hook import Call, Reader


def logged(argument: str, prefix: str = "") -> Reader:
    """A reader of the mapping (or list of such) that is passed as `argument`; `prefix` is the
    argument that stands before its names, if there is one. NaN is kept: a loss may be."""

    def read(call: Call) -> None:
        found = call.argument(argument)
        before = call.argument(prefix) if prefix else ""
        for figures in found if isinstance(found, list) else [found]:
            if isinstance(figures, dict):
                record_figures(call, figures, f"{before}/" if before else "")

    return read


def record_figures(call: Call, figures: dict[Any, Any], prefix: str = "") -> None:
    """Each number on the host as a row of `samples`; for one on a device the job would wait."""
    known = {name: float(value) for name, value in figures.items() if is_number(value)}
    counters = [call.recorder.name(f"{prefix}{name}") for name in known]
    call.rows("samples", len(known), counter=counters, value=[*known.values()])


def is_number(value: Any) -> bool:
    """Whether it is a number of Python's or a single one of NumPy's."""
    if type(value).__module__ == "numpy":
        return bool(value.shape == () and value.dtype.kind in "iuf")
    return isinstance(value, float | int) and not isinstance(value, bool)
