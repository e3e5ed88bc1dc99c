"""How a command ends when something goes wrong, whenever that is: a code, and one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from rltrace.entry import ended
from rltrace.testing.handmade_runs import process, run_of, turns
from tests.hooks.conftest import untraced

LOADING = dedent("""
    import os, signal, sys
    name, how = sys.argv[1:3]
    del sys.argv[1:3]

    class Finder:
        def find_spec(self, module, path=None, target=None):
            if module != name:
                return None
            sys.meta_path.remove(self)
            if how == "broken":
                raise SyntaxError("this file was changed")
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if how == "swallowed":  # as a library does that takes it for an error of its own
                    raise ImportError("something failed") from None
                raise

    sys.meta_path.insert(0, Finder())
    from rltrace.entry import main
    main()
""")


def command(*words: object) -> subprocess.CompletedProcess[str]:
    return untraced(sys.executable, "-c", LOADING, *map(str, words))


@pytest.mark.parametrize(
    "module",
    ["rltrace.cli", "click", "rltrace.analysis", "duckdb", "numpy"],
)
@pytest.mark.parametrize(("how", "code"), [("broken", 70), ("told", 130), ("swallowed", 130)])
def test_while_modules_are_loaded(tmp_path: Path, module: str, how: str, code: int) -> None:
    run = run_of(tmp_path, process("driver", *turns(6, 6, 6, 6, 6)))
    done = command(module, how, "gate", run.path, "--min", "goodput=1")
    assert done.returncode == code, done.stderr
    (said,) = done.stderr.strip().splitlines()  # click has a line of its own for the sign ^C
    assert (said == "rltrace: interrupted") == (code == 130)


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("can't start new thread"), 4),
        (RuntimeError("something else"), 70),
        (RecursionError(), 70),
        (Panic(), 70),
        (SystemExit("a library gives up"), 70),
        (MemoryError(), 4),
        (PermissionError(13, "no"), 4),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else str(one),
)
def test_what_fails_is_no_answer(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(SystemExit) as told:
        ended(fails)
    assert told.value.code == code
    assert len(capsys.readouterr().err.splitlines()) == (code != 3)
