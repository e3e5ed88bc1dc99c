"""Strings rewritten by a rule: "bca=" is "abc." sorted, "acb." reversed and "bca." copied."""

from __future__ import annotations

from collections.abc import Callable

from rltrace.trainer.task import Task

RULES: dict[str, Callable[[str], str]] = {
    "sort": lambda question: "".join(sorted(question)),
    "reverse": lambda question: question[::-1],
    "copy": lambda question: question,
}


class Rewriting(Task):
    """One rule, on strings of `shortest` to `longest` symbols."""

    def solution(self, question: str) -> str:
        return RULES[self.name](question)

    @property
    def longest_response(self) -> int:
        return self.config.longest + 1
