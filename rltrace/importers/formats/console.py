"""What a console prints of steps, in the shapes of a framework's table.

A log is read as it was pasted. What stands around the figures (a process, a clock, colours) is cut
off, and lines that a terminal or a forum broke are joined again where the shape shows that the one
goes on in the next. A number that may be cut (12.5 reads as 1) is left out; at the end of a text
without a line's end one with a fraction is kept: its size is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from rltrace.adapters.log_table import ELAPSED_S, LogRecord, is_beside, log_tables
from rltrace.importers.formats import json_lines
from rltrace.importers.formats.job_progress import JobProgress, ProgressBar
from rltrace.importers.formats.printed_figures import (
    BORDERS,
    LINE,
    SURE_END,
    Pairs,
    bare,
    cells_of,
    cleaned,
    goes_on_with,
    items_of,
    pairs_of,
    shown_value,
)
from rltrace.importers.formats.printed_settings import PrintedSettings
from rltrace.importers.log_records import Counted, JobEnd, check_many, number, split

_ELIDED = re.compile(r"(?:[,{]|\.)\s*(?:\.\.\.|…)")
_HEADING = re.compile(r"\W*([A-Za-z][\w ]*?)\W*:?\W*")
_ROW = tuple(BORDERS + "├┤╞╡+")  # what a row begins and ends with
_FRAGMENT = re.compile(r"[\w./@+-]{1,60}")
_MOST_TEXT = 1 << 18  # characters of a record
_SHORTEST, _LONGEST = 20, 400  # characters of a line that may have been broken
_MOST_LINES = 2000  # of a record that a dict or items go on over


@dataclass(frozen=True)
class PrintedForm:
    """One entry of `console` in a framework's table."""

    framework: str
    shape: str
    word: str
    begins: re.Pattern[str]
    between: str
    sections: Mapping[str, str]
    labels: Mapping[str, str]
    known: frozenset[str]

    def metric(self, label: str, section: str = "") -> str:
        return self.labels.get(label) or self.sections.get(section, "") + label

    def cells(self, row: str, section: str) -> Iterator[tuple[str, float]]:
        """The metrics of a table's row, and their values."""
        return ((self.metric(name, section), value) for name, value in cells_of(row))


@cache
def printed_forms() -> tuple[PrintedForm, ...]:
    """Those of all frameworks. Descendants print as the one they are like."""
    forms = list[PrintedForm]()
    for table in log_tables().values():
        timers = (name for part in ("inside", "after") for name in table.get(part, ()))
        of_all = table.get("labels", {}), frozenset(timers)
        for one in table.get("console", ()):
            own = one["shape"], one["word"], re.compile(one["begins"]), one.get("between", "")
            forms.append(PrintedForm(table["framework"], *own, one.get("sections", {}), *of_all))
    return tuple(forms)


@dataclass
class PrintedLog:
    """What a console says: its records, what was skipped, notes, how often a metric was no finite
    number, words of the configuration, whose form the records have ("" for anybody's), what
    ended the job, and how many steps its bar shows (0: there is none)."""

    records: list[LogRecord] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_finite: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)
    framework: str = ""
    settings: PrintedSettings = field(default_factory=PrintedSettings)
    ended: JobEnd = field(default_factory=JobEnd)
    done: int = 0


@dataclass
class _Open:
    """A record that may go on in the next line."""

    form: PrintedForm
    step: int | None
    before: str  # what stood before it in its line
    text: str = ""
    pairs: list[tuple[str, float]] = field(default_factory=list)
    depth: int = 0
    section: str = ""
    lines: int = 1
    at: int = 0
    width: int = 0


def read(
    lines: Iterable[str], settings: Mapping[str, re.Pattern[str]], framework: str = ""
) -> PrintedLog:
    """The records of a console log, of the framework that is named if it has any, else of the one
    with most. `settings`: name -> pattern, whose group 1 is looked for in lines without figures."""
    return _Reader(settings).read(lines, framework)


class _Reader:
    def __init__(self, settings: Mapping[str, re.Pattern[str]]) -> None:
        self._settings = settings
        self._found = PrintedLog()
        self._open: _Open | None = None
        self._records: list[tuple[str, int, LogRecord]] = []  # whose form, in which line
        self._torn, self._torn_end, self._cut = Counted(), Counted(), Counted()
        self._elided, self._stepless, self._says_none = Counted(), Counted(), False
        self._counted, self._says_steps, self._before = 0, False, ""
        self._widths: set[int] = set()
        self._progress, self._bar = JobProgress(), ProgressBar()  # and that beside the last record
        self._timed: list[LogRecord] = []
        self._timed_by, self._timed_is_whole = "", False

    def read(self, lines: Iterable[str], framework: str) -> PrintedLog:
        is_ended = True
        for at, line in enumerate(lines, 1):
            is_ended = line.endswith(("\n", "\r"))
            self._line(at, cleaned(json_lines.unwrapped(line)))
        last = self._open if not self._before else None  # the text ends in it
        self._close(is_last=not is_ended)
        if last is not None and last.form.shape in ("lines", "rows"):
            self._check_whole(last.form)
        found, forms = self._found, Counter(form for form, _, _ in self._records)
        if self._timed and not forms[self._timed_by]:
            self._records += [(self._timed_by, 0, record) for record in self._timed]
            forms, self._says_none = Counter([self._timed_by]), True
        most = next((form for form, _ in forms.most_common(1)), "")
        found.framework = framework if framework and framework in forms else most
        found.ended = self._progress.end
        bar = self._bar if self._records else self._progress.bar  # there may be bars of other work
        found.done = self._progress.reached[bar.of]
        found.records = [one for form, _, one in self._records if form == found.framework]
        others = [at for form, at, _ in self._records if form != found.framework]
        foreign = Counted(len(others), *others[:1])
        for told, said in (
            (self._torn, "the last number of {}, torn or run into another"),
            (self._torn_end, "the last number of the last line, which is torn"),
            (self._cut, "the timers of the last step, {}: the log ends before all are told"),
            (foreign, "{}: figures as another framework or logger writes them"),
            (self._elided, "{}: the dict is cut there, by hand: the rest is unknown"),
            (self._stepless, "{}: JSON without a step and numbers"),
        ):
            found.skipped += [said.format(told)] * bool(told.count)
        if self._says_none:
            found.notes.append(json_lines.COUNTED)
        return found

    def _line(self, at: int, line: str) -> None:
        self._progress.take(line)
        begun = [] if self._is_broken_in(line) else list(_begun(line))
        if not begun and _SHORTEST < len(self._before) < _LONGEST:
            # A terminal may have broken the line where a record begins.
            whole, at_break = self._before + bare(line, "").strip(), len(self._before)
            begun = [o for o in _begun(whole) if o[0].start() < at_break < o[0].end()]
            line = whole if begun else line
        self._before = ""
        if begun:
            self._progress.goes_on()
        if begun and all(form.shape == "timers" for _, form in begun):
            for match, form in begun:
                self._timer(form, match["name"], float(match["value"]))
        elif begun:
            self._close()
            self._begin(at, line, list(_apart(line, begun)))
            self._before = line if line.endswith(begun[-1][0][0]) else ""  # its step may be broken
        elif self._open is None or not self._goes_on(at, line):
            self._before = line
            if self._open is not None and self._open.form.shape in ("items", "dict"):
                self._close(next_line=line)
            self._other(at, line)

    def _is_broken_in(self, line: str) -> bool:
        """Whether a name of the open record was broken, of which a line has what looks like a
        begin: `training/global_` and `step:3 - `."""
        record = self._open
        if record is None or record.form.shape != "items" or not record.text.endswith(("_", "/")):
            return False
        return any(match.start() == 0 and form is record.form for match, form in _begun(line))

    def _begin(self, at: int, line: str, begun: list[tuple[re.Match[str], PrintedForm]]) -> None:
        for place, (match, form) in enumerate(begun):
            if place:
                self._close(is_cut=True)
            end = next(
                (m.start() for m, _ in begun[place + 1 :] if m.start() >= match.end()), len(line)
            )
            said = match.groupdict().get("step")
            before = "" if place else line[: match.start()]
            if form.shape == "rows":  # the border is the row's
                before = re.sub(rf"\s*[{BORDERS}]\s*$", "", before)
            self._open = _Open(form, None if said is None else int(said), before, at=at)
            self._open.width = len(line)
            text = line[match.end() : end]
            if form.shape == "dict":
                self._open.depth = match[0].count("{")
                self._dict(self._open, text)
            elif form.shape == "items":
                self._open.text = text
            elif form.shape == "rows":
                self._open.pairs += form.cells(text, "")

    def _timer(self, form: PrintedForm, name: str, seconds: float) -> None:
        """A timer that ended. That of the step is the last of a record, which is counted."""
        metric = form.metric(name)
        if not self._timed or metric in self._timed[-1].metrics or self._timed_is_whole:
            self._timed.append(LogRecord(len(self._timed) + 1, {}))
        self._timed[-1].metrics[metric] = seconds
        self._timed_by = form.framework
        self._timed_is_whole = metric in log_tables()[form.framework].get("step", ())

    def _goes_on(self, at: int, line: str) -> bool:
        """Whether the open record goes on in a line, which is then taken in."""
        record = self._open
        assert record is not None
        line_ = bare(line, record.before)
        if record.lines > _MOST_LINES or len(record.text) > _MOST_TEXT:
            return False
        shape = record.form.shape
        if shape == "lines":
            return self._in_lines(record, line_)
        if shape == "rows":
            return self._in_rows(record, line_)
        text = line_.strip()
        if not text:
            return False
        if shape == "dict":
            if record.depth <= 0 and (record.text or not text.startswith("{")):
                return False
            self._dict(record, text)
        else:
            is_wide, form = record.width in self._widths and record.lines > 1, record.form
            joined = goes_on_with(record.text, text, form.between, form.labels, is_wide)
            if joined is None:
                return False
            record.text = joined
        if shape == "items" or record.lines == 1:
            self._widths.add(record.width)
        record.lines, record.width = record.lines + 1, len(line)
        return True

    def _dict(self, record: _Open, text: str) -> None:
        for place, sign in enumerate(text):
            if sign in "{}":
                record.depth += 1 if sign == "{" else -1
                if record.depth <= 0:
                    record.text += text[: place + 1]
                    self._close()
                    return
        record.text += text

    def _in_lines(self, record: _Open, line: str) -> bool:
        match, text, before = LINE.fullmatch(line.rstrip()), line.strip(), record.text
        record.text = ""
        if match is None and before and not line.startswith((" ", "\t")):
            match = LINE.fullmatch(f"{before}{text}")
        if match is None:
            if text.startswith(("•", "-", "*")) and len(text) > 1:
                record.text = line.rstrip()
            elif text.endswith(":") and (heading := _HEADING.fullmatch(text)):
                record.section = heading[1]
            else:
                return False
            return True
        name = record.form.metric(match["name"], record.section)
        is_known = name in record.form.known or match["name"] in record.form.labels
        if not match["lead"] and not is_known:
            return False
        value = shown_value(match["value"], match["unit"])
        if value is not None and name not in dict(record.pairs):
            record.pairs.append((name, value))
        return True

    def _in_rows(self, record: _Open, line: str) -> bool:
        """A row without a border at its end goes on in the next line, unless that is a row."""
        text = line.strip()
        is_row = text.startswith(_ROW)
        if record.text and (is_row or not text):
            self._row(record, record.text)
        else:
            text, is_row = record.text + text, is_row or bool(record.text)
        record.text = ""
        if not is_row:
            return False
        if text.endswith(_ROW) and len(text) > 1:
            self._row(record, text)
        else:
            record.text = text
        return True

    def _row(self, record: _Open, text: str) -> None:
        if text[0] not in BORDERS:
            heading = _HEADING.fullmatch(text.strip("├┤╞╡─═┼╪+ "))
            record.section = heading[1] if heading else record.section
            return
        for name, value in record.form.cells(text, record.section):
            if name in dict(record.pairs):  # the next table
                self._close()
                record = self._open = _Open(record.form, None, record.before, at=record.at)
            record.pairs.append((name, value))

    def _other(self, at: int, line: str) -> None:
        """A line in which no form begins and no record goes on: JSON, a table, or anything."""
        text = bare(line, "").strip()
        if text.startswith("{") and (found := json_lines.record_of(text)) is not None:
            record, not_finite = found
            self._found.not_finite.update(not_finite)
            self._records.append(("", at, record))
            self._progress.goes_on()
            return
        if '"step"' in text and json_lines.looks_like(text):
            self._stepless.add(at)
        if text.startswith(tuple(BORDERS)):
            self._table(at, text)
        self._found.settings.take(text)
        for name, pattern in self._settings.items():
            if name not in self._found.said and (match := pattern.search(line)):
                self._found.said[name] = str(match[match.lastindex or 0])

    def _table(self, at: int, text: str) -> None:
        """A row before which nothing said the step."""
        for form in printed_forms():
            if form.shape == "rows" and any(n in form.known for n, _ in form.cells(text, "")):
                self._close()
                self._progress.goes_on()
                self._open = _Open(form, None, "", at=at)
                self._in_rows(self._open, text)
                return

    def _check_whole(self, form: PrintedForm) -> None:
        """The last table may lack timers that all others have: they were cut off, and without them
        its others do not tell where the step's time went."""
        timers = {*form.known, *log_tables()[form.framework].get("step", ())}
        of_form = [(at, one.metrics) for by, at, one in self._records if by == form.framework]
        *tables, (at, last) = of_form or [(0, {})]
        named = [timers & table.keys() for _, table in tables if timers & table.keys()]
        if named and set.intersection(*named) - last.keys():
            self._cut.add(at)
            for name in timers & last.keys():
                del last[name]

    def _close(self, is_last: bool = False, is_cut: bool = False, next_line: str = "") -> None:
        record, self._open = self._open, None
        if record is None:
            return
        form, is_torn = record.form, False
        pairs: Pairs = list(record.pairs)
        if form.shape == "items":
            pairs, is_torn = items_of(record.text, form.between)
            if pairs and not is_torn:
                fragment = _FRAGMENT.fullmatch(next_line.strip())
                number_goes_on = fragment and fragment[0][0] in "0123456789.e"
                if (is_last and not SURE_END.search(record.text)) or is_cut or number_goes_on:
                    pairs, is_torn = pairs[:-1], True
        elif form.shape == "dict":
            pairs, is_torn = pairs_of(record.text)
            if _ELIDED.search(record.text):
                self._elided.add(record.at)
        if is_torn:
            (self._torn_end if is_last else self._torn).add(record.at)
        if pairs:
            self._keep(record, pairs)

    def _keep(self, record: _Open, pairs: Pairs) -> None:
        table = log_tables()[record.form.framework]
        named = [(record.form.labels.get(name, name), value) for name, value in pairs]
        metrics, infinite = split(named)
        self._found.not_finite.update(name for name, value in named if number(value) is None)
        names = {*metrics, *infinite}
        if names & set(table.get("sums", ())):  # what sums the training up
            self._found.said |= {name: repr(value) for name, value in metrics.items()}
            return
        step = record.step
        if step is None:
            numbers = [metrics.pop(n) for n in table.get("numbers", ()) if n in metrics]
            stated = next(iter(numbers), None)
            bar = self._progress.bar
            if is_beside(names, table):
                metrics = {n: v for n, v in metrics.items() if n != "epoch"}
            elif stated is not None:
                self._counted, self._says_steps = int(stated), True
            elif bar.step and bar[:2] != self._bar[:2] and not self._says_steps:
                self._counted, metrics[ELAPSED_S] = bar.step, float(bar.elapsed_s)
            else:
                self._counted += 1
                self._says_none = True
            step = self._counted
        self._bar = self._progress.bar
        kept = LogRecord(step, metrics, not_finite=infinite)
        self._records.append((record.form.framework, record.at, kept))
        check_many(self._records)


def _begun(line: str) -> Iterator[tuple[re.Match[str], PrintedForm]]:
    for form in printed_forms():
        if form.word in line:
            yield from ((match, form) for match in form.begins.finditer(line))


def _apart(
    line: str, begun: Iterable[tuple[re.Match[str], PrintedForm]]
) -> Iterator[tuple[re.Match[str], PrintedForm]]:
    """Where records begin in a line, in order. One that begins within another's begin is that; in
    the midst of items it is a metric that is called so."""
    end = -1
    for match, form in sorted(begun, key=lambda one: one[0].start()):
        if match.start() >= end and (end < 0 or not line.endswith(" - ", 0, match.start())):
            yield match, form
            end = match.end()
