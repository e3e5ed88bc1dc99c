"""Brings a run from a URL into a cache, only what is new.

Packs are applied in the order of their streams, a stream's in the order of their numbers, each
once. A folder with a run's plain files (somebody copied it there) is brought file by file. What is
missing or damaged is written among the run's problems, and the rest is read.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from rltrace.trace import run_dir
from rltrace.trace.errors import RltraceError
from rltrace.trace.liveness import is_brought
from rltrace.trace.metadata_validation import folder_of_runs
from rltrace.trace.read import bounds
from rltrace.trace.read.clock_alignment import SHIPPED
from rltrace.trace.safe_open import alone
from rltrace.trace.schema import TABLES
from rltrace.trace.transfer.store import (
    MOST_PACKED_BYTES,
    PACKS,
    NotAPack,
    PackName,
    Store,
    apply,
    parse_pack_name,
    unpack,
    unreached,
)
from rltrace.trace.untrusted_files import told_in

CACHE_VARIABLE = "RLTRACE_CACHE"  # environment variable: where runs from URLs are kept
_SAVE_EVERY = 64  # packs
_MERGED_MEANWHILE = 5  # times that the agent merges packs while they are read
_COMING_S = 60.0  # after its end, what a run has not shipped is on its way
_WAIT_S, _WAIT_EVERY_S = 10.0, 1.0  # for that, which most often takes a few seconds
_NAMED = 5  # processes of a node that is told of
_PLAIN = (*run_dir.FOLDERS, run_dir.PARQUET)

Problem = dict[str, str]
Tell = Callable[[int, int], None]
"""Told how many bytes have come, and of how many."""


def fetch(url: str, tell: Tell = lambda done, of: None) -> Path:
    """Brings what is new of the run at `url`; its directory here. Errors: `RltraceError` where
    there is none, or it cannot be reached; OSError of the disk here."""
    try:
        store = Store(url)
        if store.get(run_dir.RUN_FILE) is None:
            runs = [n for n in store.folders() if store.get(f"{n}/{run_dir.RUN_FILE}") is not None]
            none = f"{store.url} holds no run"
            raise RltraceError(folder_of_runs(store.url, runs) if runs else none)
        folder = cached(url)
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            _bring(store, folder, tell)
    except OSError as error:
        raise unreached(url, error) from None
    return folder


def cached(url: str) -> Path:
    """Where a run at a URL lies here once it has been brought."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rltrace")
    mark = hashlib.blake2b(url.rstrip("/").encode(), digest_size=6).hexdigest()
    name = posixpath.basename(url.rstrip("/"))[:80]
    return Path(os.environ.get(CACHE_VARIABLE) or default).absolute() / mark / name


def brought_from(folder: Path) -> str | None:
    """The URL that a run was brought from; None of one that was not."""
    if not is_brought(folder):
        return None
    return str(told_in(folder / run_dir.FETCHED_FILE).get("url") or "a run at a URL")


def _bring(store: Store, folder: Path, tell: Tell) -> None:
    for name in run_dir.FOLDERS:
        (folder / name).mkdir(exist_ok=True)
    known = told_in(folder / run_dir.FETCHED_FILE)
    known["url"] = store.url
    run: dict[str, Any] | None = None
    give_up = time.monotonic() + _WAIT_S
    while True:
        _bring_nodes(store, folder)  # first: what they say is there comes with the packs
        if packs := store.sizes(PACKS):
            problems = _bring_merging(store, folder, packs, known, tell)
        else:
            problems = _bring_files(store, folder, known, tell)
        was_over, run = _is_over(run), store.get_json(run_dir.RUN_FILE)
        if not (packs and _is_over(run) and _lacking(folder)):
            break
        if was_over:  # else it ended meanwhile: the last of it comes after its end
            if not _is_coming(run) or time.monotonic() > give_up:
                break
            time.sleep(_WAIT_EVERY_S)
    if run is None:
        raise RltraceError(f"{store.url}/{run_dir.RUN_FILE} is not a run's description")
    told = folder / run_dir.PROBLEMS / "(shipping).jsonl"
    told.unlink(missing_ok=True)
    if _is_over(run):
        problems += _not_whole(folder, known.get("whose", {}), run)
    for problem in problems:
        run_dir.append_line(str(told), problem)
    run_dir.write_json(f"{folder}/{run_dir.RUN_FILE}", run)


def _bring_merging(
    store: Store, folder: Path, sizes: dict[str, int], known: dict[str, Any], tell: Tell
) -> list[Problem]:
    """As `_bring_packs`, which begins anew where the agent merges some meanwhile."""
    for _ in range(_MERGED_MEANWHILE):
        try:
            return _bring_packs(store, folder, sizes, known, tell)
        except FileNotFoundError:
            sizes = store.sizes(PACKS)
    return _bring_packs(store, folder, sizes, known, tell)


def _bring_packs(
    store: Store, folder: Path, sizes: dict[str, int], known: dict[str, Any], tell: Tell
) -> list[Problem]:
    """Applies the packs that are not yet; what is wrong with them."""
    streams: dict[str, list[PackName]] = {}
    for name in sizes:
        if (pack := parse_pack_name(name)) is not None:
            streams.setdefault(pack.stream, []).append(pack)
    applied: dict[str, int] = known.setdefault("applied", {})
    lacking: dict[str, str] = known.setdefault("lacking", {})
    whose: dict[str, str] = known.setdefault("whose", {})
    new: list[PackName] = []
    given_up: set[str] = set()  # what was in them is in the packs that follow
    for packs in sorted(streams.values(), key=lambda packs: (packs[0].began_ns, packs[0].stream)):
        packs.sort(key=lambda pack: (pack.number, pack.after))
        last = applied.get(packs[0].stream, 0)
        reached = 0  # all packs until this number are there, by themselves or merged
        for pack in packs:
            if pack.after > reached:
                lacking[f"{pack.stream}.{pack.after:08d}"] = "it is missing"
            reached = max(reached, pack.number)
        new += [pack for pack in packs if pack.number > last]
        given_up.update(p.name for p, following in pairwise(packs) if following.after < p.number)
    of_bytes, done_bytes = sum(sizes[pack.name] for pack in new), 0
    wanted = {f"{PACKS}/{pack.name}": sizes[pack.name] for pack in new}
    newest = {stream: max(pack.number for pack in packs) for stream, packs in streams.items()}
    cut: set[str] = set()
    for n, (pack, (_, data)) in enumerate(zip(new, store.read(wanted), strict=True), 1):
        done_bytes += sizes[pack.name]
        tell(done_bytes, of_bytes)
        if pack.stream in cut:
            continue
        try:
            if not data:
                raise NotAPack(f"it is longer than {MOST_PACKED_BYTES} bytes, or empty")
            pieces = unpack(data)
            apply(pieces, folder)
            introduced = [p.path for p in pieces if p.path.startswith(f"{run_dir.PROCESS}/")]
            whose.update((Path(path).stem, pack.node) for path in introduced)
        except NotAPack as error:
            if pack.number == newest[pack.stream]:  # it is being written, or its writer was killed
                cut.add(pack.stream)
                continue
            if pack.name not in given_up:
                lacking[f"{PACKS}/{pack.name}"] = str(error)
        applied[pack.stream] = pack.number
        if n % _SAVE_EVERY == 0:
            _write_known(folder, known)
    _write_known(folder, known)
    return [{"what": run_dir.PACK_LOST, "target": n, "detail": lacking[n]} for n in lacking]


def _bring_nodes(store: Store, folder: Path) -> None:
    """Brings what nodes say of themselves; the packs listed later have what they say is there."""
    for name in store.sizes(run_dir.NODES):
        told = store.get_json(f"{run_dir.NODES}/{name}")
        if told is not None and _is_plain(f"{run_dir.NODES}/{name}"):
            run_dir.write_json(f"{folder}/{run_dir.NODES}/{name}", told)


def _is_over(run: Mapping[str, Any] | None) -> bool:
    return run is not None and run.get("end_real_ns") is not None


def _is_coming(run: Mapping[str, Any] | None) -> bool:
    """Whether a run ended so short a time ago that what is missing is on its way."""
    ended_ns = None if run is None else run.get("end_real_ns")
    return isinstance(ended_ns, int) and 0 <= time.time_ns() - ended_ns < _COMING_S * 1e9


def _lacking(folder: Path) -> list[Path]:
    """Files of nodes whose agents have not said that all of theirs is there."""
    files = sorted((folder / run_dir.NODES).glob("*.json"))
    return [path for path in files if told_in(path).get(SHIPPED) is False]


def _bring_files(store: Store, folder: Path, known: dict[str, Any], tell: Tell) -> list[Problem]:
    """Brings plain files of another size than before, and small ones always."""
    before: dict[str, int] = known.setdefault("files", {})
    found = {n: size for n, size in store.sizes(deep=True).items() if _is_plain(n)}
    long = [n for n, size in found.items() if size > _most_bytes(n)]
    found = {n: size for n, size in found.items() if n not in long}
    new = {n: size for n, size in found.items() if before.get(n) != size or n.endswith(".json")}
    of_bytes, done_bytes = sum(new.values()), 0
    for name, size in new.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        store.copy(name, str(path))
        before[name] = size
        done_bytes += size
        tell(done_bytes, of_bytes)
    _write_known(folder, known)
    said = "larger than any that rltrace writes: not brought"
    return [{"what": "unreadable-file", "target": name, "detail": said} for name in long]


def _is_plain(name: str) -> bool:
    """Whether a run has such a file: in one of its folders, or that of a compacted table."""
    *folders, file = name.split("/")
    of_table = len(folders) == 2 and folders[0] == run_dir.PARQUET and folders[1] in TABLES
    return not file.startswith(".") and (of_table or (len(folders) == 1 and folders[0] in _PLAIN))


def _most_bytes(name: str) -> int:
    """A larger file is not read, and not brought: it would only fill the disk."""
    folder = name.partition("/")[0]
    if folder == run_dir.PARQUET:
        return bounds.MOST_PARQUET_BYTES
    return bounds.MOST_SEGMENT_BYTES if folder in TABLES else bounds.MOST_TEXT_BYTES


def _not_whole(folder: Path, whose: dict[str, str], run: Mapping[str, Any]) -> Iterator[Problem]:
    """What is missing of a run that is over: nodes that did not ship all, with processes."""
    for path in _lacking(folder):
        node = told_in(path)
        names = []
        for who in sorted(who for who, name in whose.items() if name == path.stem):
            process = told_in(folder / run_dir.PROCESS / f"{who}.json")
            if process.get("role") != "agent":
                names.append(f"{process.get('role') or 'a process'} (pid {process.get('pid')})")
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        named = ", ".join(names[:_NAMED]) or "nobody"
        asked = "the job has just ended: ask again in a minute. If the same is said then, "
        detail = (
            f"what {named}{more} recorded there may not all have come: {asked * _is_coming(run)}"
            f"the node was lost, or `rltrace ship {node.get('directory')}` there brings the rest"
        )
        yield {"what": run_dir.NOT_WHOLE, "target": str(node.get("host")), "detail": detail}


def _write_known(folder: Path, known: dict[str, Any]) -> None:
    run_dir.write_json(f"{folder}/{run_dir.FETCHED_FILE}", known)
