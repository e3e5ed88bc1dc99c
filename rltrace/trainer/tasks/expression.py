"""A verifier that is a program: "17=" asks for a sum."""

from __future__ import annotations

import random
import shutil
import subprocess
from subprocess import DEVNULL, PIPE

from rltrace.trainer.config import TrainerConfig, TrainerError
from rltrace.trainer.task import Task

VERIFIER_LIMIT_SECONDS = 10.0


class Expression(Task):
    """Numbers to be written as a sum of `shortest` to `longest` terms of at most `symbols`."""

    def __init__(self, config: TrainerConfig) -> None:
        super().__init__(config, "0123456789", marks="+")
        if config.symbols > 9:
            raise TrainerError(f"symbols must be at most 9, the digits, not {config.symbols}")
        shell = shutil.which("sh")
        if shell is None:
            raise TrainerError("the task expression needs sh, and there is none on the PATH")
        self.shell = shell

    def question(self, draw: random.Random) -> str:
        terms = draw.randint(self.config.shortest, self.config.longest)
        return str(sum(draw.randint(1, self.config.symbols) for _ in range(terms)))

    @property
    def longest_question(self) -> int:
        return len(str(self.config.longest * self.config.symbols))

    def solution(self, question: str) -> str:
        return f"{int(question) - 1}+1"

    @property
    def longest_response(self) -> int:
        return self.longest_question + 3

    def score(self, question: str, response: str) -> float:
        """How near the sum comes, 1 - difference / larger; half where nothing is added; 0 for no
        sum. Errors: `subprocess.TimeoutExpired`, `subprocess.CalledProcessError` (killed)."""
        command = [self.shell, "-c", 'echo "$(($1))"', "sh", response]
        done = subprocess.run(
            command, stdout=PIPE, stderr=DEVNULL, timeout=VERIFIER_LIMIT_SECONDS, check=False
        )
        if done.returncode > 0:
            return 0.0
        done.check_returncode()
        asked, value = int(question), int(done.stdout)
        nearness = max(0.0, 1 - abs(value - asked) / max(value, asked))
        return nearness if "+" in response.lstrip("+") else 0.5 * nearness
