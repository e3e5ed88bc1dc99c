"""What `openrlhf.models.ring_attn_utils` imports of flash-attn.

It is called only with packed samples and ring attention, which no job here has.
"""

from __future__ import annotations

from typing import Any, NoReturn


def called(*_args: Any, **_more: Any) -> NoReturn:
    raise NotImplementedError("flash-attn is not here: no job of these tests packs samples")
