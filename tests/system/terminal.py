"""A terminal that can be read: a tmux session."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class Terminal:
    """One tmux server with one window; it dies with `close`, and what runs in it, too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = folder / "exit-code"
        self._base = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]

    def _tmux(self, *words: str) -> str:
        done = subprocess.run([*self._base, *words], capture_output=True, text=True, check=True)
        return done.stdout

    def run(self, command: Sequence[str], width: int = 120, height: int = 40) -> None:
        """Starts a command on a screen of `width` x `height` characters. The screen stays when the
        command ends."""
        size = ["-x", str(width), "-y", str(height)]
        keep = ["set-option", "-g", "remain-on-exit", "on", ";"]
        # tmux may see that the terminal was closed before it hears how the command ended, and then
        # never says so.
        self._ended.unlink(missing_ok=True)
        told = f"echo $? > {shlex.quote(str(self._ended))}"
        shell = f"trap : INT; {shlex.join(command)}; {told}"
        self._tmux(*keep, "new-session", "-d", *size, "-c", str(self._folder), shell)

    def screen(self) -> str:
        return self._tmux("capture-pane", "-p", "-t", ":0")

    def until(self, holds: Callable[[str], bool], seconds: float = 60) -> str:
        """The screen once something holds for it. Errors: `AssertionError` with the screen, if that
        did not happen in time."""
        deadline = time.monotonic() + seconds
        while not holds(screen := self.screen()):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen

    def type(self, *keys: str) -> None:
        """Presses keys, by tmux's names: `type("q")`, `type("C-c")`."""
        self._tmux("send-keys", "-t", ":0", *keys)

    def resize(self, width: int, height: int) -> None:
        """Gives the screen another size, in characters."""
        self._tmux("resize-window", "-t", ":0", "-x", str(width), "-y", str(height))

    def exit_code(self) -> int | None:
        """The command's exit code; None while it runs."""
        said = self._ended.read_text() if self._ended.exists() else ""
        return int(said) if said.endswith("\n") else None

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, check=False)
