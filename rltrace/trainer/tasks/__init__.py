"""The kinds of task, by the name that `TrainerConfig.task` gives."""

from __future__ import annotations

from collections.abc import Callable

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import Task
from rltrace.trainer.tasks.lookup import RULES, Expression, Lookup, Repeat, Rewriting

KINDS: dict[str, Callable[[TrainerConfig], Task]] = {
    **dict.fromkeys(RULES, Rewriting),
    "repeat": Repeat,
    "expression": Expression,
    "lookup": Lookup,
}
