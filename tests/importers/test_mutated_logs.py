"""Five hundred ways in which a terminal, a shell or a forum changes a log: what only wraps, colours
or prefixes it changes no figure; whatever else happens to it, no figure that is read is wrong."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.importers.log_files import read_log
from rltrace.testing.inside.importers import read_run
from rltrace.testing.inside.trace import RltraceError

HERE = Path(__file__).parent
LOGS = [
    *sorted(HERE.glob("pasted/verl_070*.log")),
    *sorted(HERE.glob("pasted/verl_gen*.log")),
    *sorted(HERE.glob("pasted/slime_colocated*.log")),
    *sorted(HERE.glob("pasted/nemo_rl*.log")),
    *sorted(HERE.glob("pasted/torchforge*.log")),
    *sorted(HERE.glob("pasted/prime_rl*.log")),
    *sorted(HERE.glob("pasted/rlinf*.log")),
    *sorted(HERE.glob("pasted/trl_dicts*.log")),
    HERE / "fixtures/openrlhf_console.log",
    HERE / "public/08_searchr1_quoted.log",
]
Change = Callable[[str, random.Random], bytes]
Figures = dict[tuple[int, str], float]


def wrapped(text: str, draw: random.Random) -> bytes:
    """As a terminal breaks lines: anywhere, at its width."""
    width = draw.choice((80, 100, 120, 132, 160, 200, 237))
    lines = [
        line[at : at + width] for line in text.split("\n") for at in range(0, len(line) or 1, width)
    ]
    return "\n".join(lines).encode()


def indented(text: str, draw: random.Random) -> bytes:
    """As a forum breaks lines: at a space, what follows indented."""
    width, lines = draw.choice((90, 120, 150)), []
    for line in text.split("\n"):
        rest, by = line, ""
        while len(rest) > width and " " in rest[20:width]:
            at = rest.rindex(" ", 20, width)
            lines.append(by + rest[:at])
            rest, by = rest[at + 1 :], "    "
        lines.append(by + rest)
    return "\n".join(lines).encode()


def prefixed(text: str, draw: random.Random) -> bytes:
    """As launchers print the lines of processes."""
    prefix = draw.choice(
        ("(TaskRunner pid=77, ip=10.0.0.3) ", "[rank0]: ", "0: ", "2026-01-02T03:04:{:02d}.5Z ",
         "worker-0 | ", "\x1b[36m(Runner pid=5)\x1b[0m ", "> ")
    )  # fmt: skip
    return "\n".join(
        prefix.format(at % 60) + line for at, line in enumerate(text.split("\n"))
    ).encode()


def coloured(text: str, draw: random.Random) -> bytes:
    """As a terminal's colours stand in a file."""
    code = draw.choice(("\x1b[32m", "\x1b[1;38;2;180;140;80m", "\x1b[2m\x1b[36m"))
    return "\n".join(f"{code}{line}\x1b[0m" for line in text.split("\n")).encode()


def with_bars(text: str, draw: random.Random) -> bytes:
    """With progress bars before lines, in the same line but for a carriage return."""
    bar = "Training Progress:  12%|█▎        | 3/25 [05:01<36:49, 100.43s/it]"
    lines = [f"{bar}\r{line}" if draw.random() < 0.5 else line for line in text.split("\n")]
    return "\n".join(lines).encode()


def encoded(text: str, draw: random.Random) -> bytes:
    """As programs of Windows write text, or packed."""
    plain = text.encode()
    return draw.choice(
        (text.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + plain, text.encode("utf-16"),
         text.encode("utf-16-le"), gzip.compress(plain), b"\0\0\0" + plain)
    )  # fmt: skip


def cut(text: str, draw: random.Random) -> bytes:
    """Cut off anywhere, at its end or at its beginning."""
    at = draw.randrange(len(text))
    return (text[:at] if draw.random() < 0.5 else text[at:]).encode()


def damaged(text: str, draw: random.Random) -> bytes:
    """With a piece missing, or another process's words in it."""
    at = draw.randrange(len(text))
    more = draw.choice(("", "\n", " ", "loading shard 3 of 7\n", "\nWARNING: slow\n"))
    return (text[:at] + more + text[at + draw.choice((0, 0, 1, 20, 200)) :]).encode()


HARMLESS = {"wrapped": wrapped, "indented": indented, "prefixed": prefixed, "coloured": coloured,
            "bars": with_bars, "encoded": encoded}  # fmt: skip
HARMFUL = {"cut": cut, "damaged": damaged}
MANY = 500 // (len(HARMLESS) + len(HARMFUL)) + 1


def figures(path: Path) -> Figures:
    """Every figure that is read of a log, by its step and its name; {} where it is refused."""
    try:
        log = read_log(path)
        read_run(path)
    except RltraceError:
        return {}
    return {(r.step, name): value for r in log.records for name, value in r.metrics.items()}


def changed(folder: Path, change: Change, at: int) -> tuple[Figures, Figures]:
    """The figures of a log, and of the same log changed."""
    log = LOGS[at % len(LOGS)]
    text = log.read_text("utf-8")
    (folder / "log").write_bytes(change(text, random.Random(at)))
    return figures(log), figures(folder / "log")


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_only_wraps_prefixes_or_colours_a_log_changes_no_figure(
    tmp_path: Path, kind: str
) -> None:
    pairs = [changed(tmp_path, HARMLESS[kind], at) for at in range(MANY)]
    assert all(before for before, _ in pairs)
    assert [wrong(*pair) for pair in pairs] == [{}] * MANY
    equal = sum(before == after for before, after in pairs)
    assert equal >= 0.9 * MANY


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_log_that_is_cut_or_damaged_has_no_wrong_figure(tmp_path: Path, kind: str) -> None:
    pairs = [changed(tmp_path, HARMFUL[kind], at) for at in range(MANY)]
    bad = {at: found for at, pair in enumerate(pairs) if (found := wrong(*pair))}
    assert bad == {}


def wrong(before: Figures, after: Figures) -> dict[tuple[int, str], float]:
    """Figures that are not those of the log; one that is missing is not wrong. Where the step's
    number itself is lost, records are counted; what has lost its name is nobody's."""
    values: dict[str, set[float]] = {}
    for (_, name), value in before.items():
        values.setdefault(name, set()).add(value)
    return {
        key: value
        for key, value in after.items()
        if key[1] in values and value not in values[key[1]]
    }
