"""A copy of a tree with an environment of its own, for what changes `rltrace/` and runs tests."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from contextlib import suppress
from pathlib import Path


def copied(tree: Path) -> Path:
    """The tree's tracked files in a new folder. Its `.venv` has all that ours has, but the copy's
    rltrace, in whatever process and whatever its environment."""
    copy = Path(tempfile.mkdtemp(prefix="rltrace-copy-"))
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=tree, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, copy / name, follow_symlinks=False)
    own = copy / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    base, bin_dir = Path(sysconfig.get_path("purelib")), Path(sys.executable).parent
    site = own / base.relative_to(sys.prefix)
    (site / "0.pth").write_text(f"{copy}\n{base}\n")
    shutil.copy2(base / "rltrace.pth", site)
    shebang = f"#!{bin_dir}/python".encode()
    for script in bin_dir.iterdir():
        if script.is_file() and not script.is_symlink():
            text = script.read_bytes()
            if text.startswith(shebang):
                (own / "bin" / script.name).write_bytes(
                    text.replace(str(bin_dir).encode(), str(own / "bin").encode())
                )
                (own / "bin" / script.name).chmod(0o755)
    (copy / ".venvs").symlink_to(Path(".venvs").resolve())
    return copy


def run_tests(copy: Path, *arguments: str, limit_s: float | None) -> tuple[int | None, str]:
    """pytest in a copy: its exit code, None for one that was cut off, and what it printed."""
    python = copy / ".venv/bin/python"
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["RAY_DEFAULT_PACKAGES"] = str(copy / ".venvs/ray-default")
    environment["PATH"] = f"{python.parent}:{environment['PATH']}"
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with tempfile.TemporaryFile("w+") as out:
        started = subprocess.Popen(
            command, cwd=copy, env=environment, stdout=out, stderr=out, start_new_session=True
        )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = started.wait(limit_s)
        with suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()
        out.seek(0)
        return code, out.read()
