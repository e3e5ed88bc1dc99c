"""What `wrap` is asked for beside a command: what the run's description says of it, and what the
job's processes find in their environment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rltrace.hooks.boot import CAPTURE_VARIABLE, LOG_STEPS_VARIABLE, PROBE_VARIABLE, SYNC_VARIABLE
from rltrace.hooks.doses import Design
from rltrace.plugins import REPLACEMENTS
from rltrace.trace.run_dir import CAPTURE_TOKENS


@dataclass(frozen=True)
class Asked:
    """`hooks` are the user's own as `"module:qualname=stage"`, `probe` delays stages, `live` says a
    line a step, `log_steps` puts the figures of steps into what the job logs, `sync` has its
    weights moved by rltrace.sync, `ship` is the URL of a folder to which the run is shipped,
    `capture_tokens` has the token ids of samples recorded."""

    hooks: tuple[str, ...] = ()
    probe: Design | None = None
    live: bool = False
    log_steps: bool = False
    sync: bool = False
    ship: str | None = None
    capture_tokens: bool = False

    def settings(self) -> dict[str, Any]:
        """What the run's description has of it."""
        said: dict[str, Any] = {"hooks": list(self.hooks)}
        if self.probe is not None:
            said["probe"] = self.probe.settings()
        if self.sync:
            said["sync"] = True
        if self.capture_tokens:
            said[CAPTURE_TOKENS] = True
        return said

    def variables(self) -> dict[str, str]:
        """What processes of the run find in their environment, where it is shipped to aside."""
        found = self.replaced()
        if self.probe is not None:
            found[PROBE_VARIABLE] = self.probe.text()
        if self.capture_tokens:
            found[CAPTURE_VARIABLE] = "1"
        if self.log_steps:
            found[LOG_STEPS_VARIABLE] = "1"
        return found

    def replaced(self) -> dict[str, str]:
        """The part of it that a command within an outer run has, too."""
        return {SYNC_VARIABLE: ";".join(REPLACEMENTS)} if self.sync else {}

    def left_to_the_outer_run(self) -> list[str]:
        """Where a wrap joins the run that it is in: what that decides, a sentence each."""
        joins = "this joins the outer run, which"
        left = {
            "probe": f"{joins} alone can be probed",
            "live": f"{joins} says its own steps",
            "log_steps": "this joins the outer run, whose steps are logged if it was asked to",
            "ship": f"{joins} is shipped if that was asked to be",
            "capture_tokens": f"{joins} has them if it was asked to",
        }
        asked = {name: said for name, said in left.items() if getattr(self, name)}
        return [f"--{name.replace('_', '-')}: {said}" for name, said in asked.items()]
