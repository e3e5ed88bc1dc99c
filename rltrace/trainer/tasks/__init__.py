"""The kinds of task by name, and the rules that rewrite a string."""

from collections.abc import Callable

from rltrace.trainer.config import TrainerConfig
from rltrace.trainer.task import Task
from rltrace.trainer.tasks.expression import Expression
from rltrace.trainer.tasks.lookup import Lookup
from rltrace.trainer.tasks.repeat import Repeat

RULES: dict[str, Callable[[str], str]] = {
    "sort": lambda question: "".join(sorted(question)),
    "reverse": lambda question: question[::-1],
    "copy": lambda question: question,
}


class Rewriting(Task):
    """One rule, on strings of `shortest` to `longest` symbols: "bca=" is "abc." sorted."""

    def solution(self, question: str) -> str:
        return RULES[self.name](question)

    @property
    def longest_response(self) -> int:
        return self.config.longest + 1


KINDS: dict[str, Callable[[TrainerConfig], Task]] = {
    **dict.fromkeys(RULES, Rewriting),
    "repeat": Repeat,
    "expression": Expression,
    "lookup": Lookup,
}
