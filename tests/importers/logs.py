"""Logs of verl, written by hand where a test is about one detail."""

from __future__ import annotations

import json
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"

TIMING = {"gen": 30.0, "reward": 2.0, "old_log_prob": 5.0, "update_actor": 20.0}


def metrics(step_s: float = 60.0, **timing: float) -> dict[str, float]:
    """What the legacy trainer logs for a step of `step_s` seconds."""
    named = {f"timing_s/{name}": value for name, value in {**TIMING, **timing}.items()}
    loop = {"timing_s/agent_loop/generate_sequences/mean": 12.5, "timing_s/update_weights": 1.0}
    return {**loop, **named, "timing_s/step": step_s, "response_length/mean": 40.0}


def json_lines(path: Path, *steps: tuple[int, dict[str, float]]) -> Path:
    """A log of the file logger."""
    lines = [json.dumps({"step": step, "data": data}) for step, data in steps]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path
