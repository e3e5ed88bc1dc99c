"""Names and numbers as a console prints them, and what stands around them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from contextlib import suppress
from html import unescape

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What programs put before a line: a process, a clock, a rank, a level, a place in the code.
_BEFORE = re.compile(
    r"\s*(?:\([^()]{1,80}\bpid=\d+[^()]*\)|\(\w{1,20}\)(?=\s+\d{8}-)|\[\w{1,20}\]"
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"|\d{8}-\d\d:\d\d:\d\d\.\d+|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?|\d{1,4}:(?=\s)"
    r"|\[?(?:INFO|WARNING|SUCCESS|DEBUG)\]?:?|[\w-]+\.py:\d+\s*[-:]?|>{1,3}(?=\s)|\d{1,6}(?=\t)"
    r"|[\w.-]+\s*\|(?=\s)|\[\d+,\d+\]<std(?:out|err)>:)(?=\s|$)"
)
_REAL = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?"
VALUE = (
    rf"(?:{_REAL}|[-+]?(?:nan|inf|NaN|Infinity)|None|True|False|np\.\w+\([^()]*\)|tensor\([^()]*\))"
)
_WRAPPED = re.compile(r"(?:np\.\w+|tensor)\(([^(),]*)[^()]*\)")
UNIT = r"(?:\s?(?P<unit>ms|µs|us|sec(?:onds?)?|s|min|%)(?=$|[\s)]))?"
# Somebody's remark, a unit that is none of time, or of how much it is.
_REST = r"(?P<rest>(?:\s|/\d|[KMGT]i?B\b).*)?$"
ITEM = re.compile(rf"(?P<name>[^\s:=][^|]*?)\s?[:=]\s*(?P<value>{VALUE}){UNIT}{_REST}")
_BARE = re.compile(rf"(?P<name>[A-Za-z][^|:=]*?) (?P<value>{_REAL}){UNIT}{_REST}")
_TIMES = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|d|h|m|s)(?:\s|$))+")
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_SECONDS = {"ms": 1e-3, "µs": 1e-6, "us": 1e-6, "min": 60, "m": 60, "h": 3600, "d": 86400}
_SECONDS |= {"%": 0.01}
# Matches whatever comes, so that no text is looked at twice; what is not closed is no pair.
_PAIR = re.compile(
    r"['\"]([^'\"]*)['\"]\s*:\s*('[^']*'|\"[^\"]*\"|(?:[^,(){}]|\([^()]*\))*)(,|\}|$)?"
)
BORDERS = "│|┃║"
LINE = re.compile(
    r"(?P<lead>\s*(?:[•*-]\s+)?)(?P<name>\S.*?)\s*:\s*" rf"(?P<value>{VALUE}){UNIT}{_REST}"
)
SURE_END = re.compile(r"(?:\.\d+|\d\s?s|\))$")  # of a text that may be cut: its number is seen
Pairs = list[tuple[str, float | None]]
"""Names and numbers; None for what is none."""


def cleaned(line: str) -> str:
    """A line without colours, NULs, and what a program of Windows made of its UTF-8."""
    line = _ANSI.sub("", line) if "\x1b" in line else line
    if "\u00e2" in line:
        with suppress(UnicodeError):
            line = b"".join(map(_as_cp1252, line)).decode()
    line = (unescape(line) if "&" in line else line).translate(_TYPED)
    return line.rstrip().replace("\0", "")


_TYPED = str.maketrans("\u00a0\u2018\u2019\u201c\u201d", " ''\"\"")
"""What chats and pages make of blanks and quotes."""


def _as_cp1252(sign: str) -> bytes:
    try:
        return sign.encode("cp1252")
    except UnicodeEncodeError:
        return sign.encode("latin-1")


def bare(line: str, before: str) -> str:
    """A line without what programs put before it, as `before` in the record's first line."""
    if before and len(before) <= 120 and _masked(line[: len(before)]) == _masked(before):
        line = line[len(before) :]
        return line[1:] if line.startswith(" ") else line
    while (match := _BEFORE.match(line)) and match.end():
        line = line[match.end() :]
        line = line[1:] if line.startswith(" ") else line
    return line


def _masked(text: str) -> str:
    return re.sub(r"\d", "0", text)


def parts_of(text: str, between: str) -> list[str]:
    """What stands between the signs, which have a space on one side at least: a minus has none."""
    sign = re.escape(between)
    around = rf"(?<=\s){sign}(?!\d)|{sign}(?=\s|$)|^{sign}(?!\d)"
    return [part.strip() for part in re.split(sign if between in (",", " ") else around, text)]


def items_of(text: str, between: str) -> tuple[Pairs, bool]:
    """The items of a text, and whether its end is none, or a name that nothing follows."""
    pairs, is_torn, parts = Pairs(), False, list(filter(None, parts_of(text, between)))
    for at, part in enumerate(parts, 1):
        match = ITEM.fullmatch(part) or (between == "|" and _BARE.fullmatch(part)) or None
        is_torn = match is None and (":" in part or (at == len(parts) and "/" in part))
        if match is not None:
            pairs.append((match["name"], shown_value(match["value"], match["unit"])))
        elif between == "|" and _TIMES.fullmatch(part):
            pairs.append(("", sum(float(n) * _SECONDS.get(u, 1) for n, u in _TIME.findall(part))))
    return pairs, is_torn


def goes_on_with(
    told: str, text: str, between: str, labels: Container[str], is_wide: bool
) -> str | None:
    """The items `told` with the next line's text; None where they do not go on in it. `is_wide`:
    lines of this length were broken before."""
    sign = re.escape(between)
    if text.startswith(f"{between} ") or told.endswith(f" {between}") or text == between:
        return f"{told} {text}"
    first, *rest = parts_of(text, between)
    if not told:
        return text if ITEM.fullmatch(first) else None
    tail = parts_of(f"{told}0", between)[-1][:-1]  # a minus at the end is a number's or a name's
    # A name of several words may have been broken between two of them.
    spaced = ITEM.fullmatch(f"{tail} {first}")
    space = " " * (spaced is not None and spaced["name"] in labels)
    if re.search(rf"\s{sign}\s|\s{sign}$", text):
        met = any(map(ITEM.fullmatch, (tail + space + first, *rest)))
        return told + space + text if met else None
    is_item = ITEM.fullmatch(text)
    if is_item and "/" in is_item["name"] and ITEM.fullmatch(tail):
        return f"{told} {between} {text}"  # one a line
    whole = ITEM.fullmatch(tail + space + text)
    if whole and not whole["rest"] and (is_wide or not ITEM.fullmatch(tail)):
        return told + space + text
    return None


def pairs_of(text: str) -> tuple[Pairs, bool]:
    """The numbers of a dict, and whether it is not closed: its last number may be cut."""
    found = [(match[1], match[2].strip(), match[3]) for match in _PAIR.finditer(text)]
    is_torn = not text.rstrip().endswith("}") or (bool(found) and not found[-1][2])
    pairs = [
        (name, _shown(value))
        for name, value, end in ((n, _first(n, v), e) for n, v, e in found)
        if end and re.fullmatch(VALUE, value.strip("'\""))
    ]
    return pairs, is_torn


def cells_of(text: str) -> Iterator[tuple[str, float]]:
    """Names and values of a row: in one cell, or in two that stand beside each other."""
    last = ""
    for cell in re.split(f"[{BORDERS}]", text):
        name, equals, shown = cell.strip().rpartition("=")
        if not equals:
            name, shown, last = last, cell.strip(), cell.strip()
        value = _shown(shown) if name and re.fullmatch(VALUE, shown) else None
        if value is not None:
            yield name.strip(), value


def _first(name: str, shown: str) -> str:
    """Of a step that is shown as `5/1000`, the 5."""
    return re.sub(r"^(['\"]?\d+)/\d+", r"\1", shown) if "step" in name else shown


def _shown(shown: str) -> float | None:
    """A number as it was printed, or None; with the type that NumPy and torch show around it."""
    shown = shown.strip("'\"")
    wrapped = _WRAPPED.fullmatch(shown)
    try:
        return float((wrapped[1] if wrapped else shown).replace(",", ""))
    except ValueError:
        return None


def shown_value(shown: str, unit: str | None) -> float | None:
    """What was printed as a number, times in seconds."""
    value = _shown(shown)
    return value if value is None or unit is None else value * _SECONDS.get(unit, 1)
