"""The kinds of task, by the name that `TrainerConfig.task` gives."""

from __future__ import annotations

from collections.abc import Callable

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import Task
from rltrace.trainer.tasks.expression import Expression
from rltrace.trainer.tasks.lookup import Lookup
from rltrace.trainer.tasks.repeat import Repeat
from rltrace.trainer.tasks.strings import RULES, Rewriting

KINDS: dict[str, Callable[[TrainerConfig], Task]] = {
    **dict.fromkeys(RULES, Rewriting),
    "repeat": Repeat,
    "expression": Expression,
    "lookup": Lookup,
}
