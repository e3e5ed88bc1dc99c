"""The colour of each stage on a terminal, the same wherever a stage is shown."""

from __future__ import annotations

COLOURS = {
    "rollout": "blue",
    "env": "cyan",
    "reward": "green",
    "reference": "bright_magenta",
    "logprob": "magenta",
    "value": "bright_red",
    "train": "red",
    "sync": "yellow",
    "switch": "bright_yellow",
    "wait": "bright_black",
}
