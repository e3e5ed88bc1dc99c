"""Rows of hooks that have something in common, which is said once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rltrace.hooks.hook import Call, Hook


def either(
    test: Callable[[Call], object], stage: str, otherwise: str | None = None
) -> dict[str, Any]:
    """The `stage` and `stages` of a row: one where the test holds, else another or none."""

    def of(call: Call) -> str | None:
        return stage if test(call) else otherwise

    return {"stage": of, "stages": (stage,) if otherwise is None else (stage, otherwise)}


def methods(owner: str, names: str, *stage: Any, **more: Any) -> tuple[Hook, ...]:
    """A row for each of these methods of a class (functions of a module), spaces between them."""
    mark = "." if ":" in owner else ":"
    return tuple(Hook(f"{owner}{mark}{name}", *stage, **more) for name in names.split())


def in_versions(versions: str, *hooks: Hook, **more: Any) -> tuple[Hook, ...]:
    """Rows of functions that only these versions have, and what else (`more`) holds for all."""
    return tuple(replace(hook, versions=versions, **more) for hook in hooks)


def formerly(before: Mapping[str, str], *hooks: Hook) -> tuple[Hook, ...]:
    """Rows of functions that older versions have elsewhere: how a target begins -> how it began."""

    def elsewhere(target: str) -> list[str]:
        return [old + target[len(new) :] for new, old in before.items() if target.startswith(new)]

    return tuple(replace(h, alternates=(*elsewhere(h.target), *h.alternates)) for h in hooks)
