"""The vocabulary's words as codes, loaded when first asked for: enums cost a process 2 ms."""

from __future__ import annotations

_codes: dict[str, dict[str, int]] = {}


def codes_of(enum: str) -> dict[str, int]:
    """Code by word of a vocabulary enum, given by name: `codes_of("Stage")["rollout"]` is 0."""
    known = _codes.get(enum)
    if known is None:
        from rltrace.trace import vocabulary

        known = {vocabulary.word(member): int(member) for member in getattr(vocabulary, enum)}
        _codes[enum] = known
    return known
