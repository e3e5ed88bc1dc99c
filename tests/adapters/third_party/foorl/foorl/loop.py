from __future__ import annotations

from foorl.timing import seconds, timed


class Engine:
    def load(self, weights: bytes, version: int) -> None: ...


class Logger:
    def log(self, figures: dict[str, float]) -> None: ...


def train(steps: int) -> None:
    engine, logger = Engine(), Logger()
    for step in range(steps):
        with timed("total"):
            with timed("idle/queue"):
                pass
            with timed("generate"):
                pass
            with timed("sync"):
                engine.load(bytes(1000), version=step + 1)
        logger.log({**seconds, "reward": 0.5})
