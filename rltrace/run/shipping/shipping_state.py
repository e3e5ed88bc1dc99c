"""The files in a run's `shipping/`: locks, progress, digests of pages.

<name>.lock     held by whoever ships what `<name>`'s processes wrote
<name>.json     how far it is, for people (`ShippingProgress`)
<name>.pages    the digests of the pages that are shipped
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rltrace.trace.run_dir import write_json
from rltrace.trace.safe_open import opened, opener
from rltrace.trace.untrusted_files import is_elsewhere, open_own, own_files, parsed, told_in

SHIPPING = "shipping"
_PAGES = ".pages"


@dataclass(frozen=True)
class ShippingProgress:
    url: str = ""
    packs: int = 0
    shipped_bytes: int = 0
    left_bytes: int = 0  # as of the last look
    error: str = ""  # why nothing comes through
    waits_for: tuple[str, ...] = ()  # hosts that have more to ship
    done: bool = False  # all of this node is there
    over: bool = False  # nobody ships any more


def write_progress(run_dir: Path, name: str, progress: ShippingProgress) -> None:
    """Errors: OSError."""
    (run_dir / SHIPPING).mkdir(exist_ok=True)
    write_json(f"{run_dir}/{SHIPPING}/{name}.json", asdict(progress))


def read_progress(run_dir: Path, name: str) -> ShippingProgress:
    told = told_in(run_dir / SHIPPING / f"{name}.json")
    known = {key: told[key] for key in asdict(ShippingProgress()) if key in told}
    try:
        return ShippingProgress(**{**known, "waits_for": tuple(known.get("waits_for", ()))})
    except TypeError:
        return ShippingProgress()


def save(run_dir: Path, name: str, url: str, shipped: dict[str, bytearray]) -> None:
    """Keeps what is shipped to a URL. Errors: OSError."""
    folder = run_dir / SHIPPING
    folder.mkdir(exist_ok=True)
    written = folder / f"{name}{_PAGES}.{os.getpid()}.tmp"
    try:
        with open(written, "w", encoding="utf-8", opener=opener) as file:
            file.write(json.dumps({"url": url}) + "\n")
            for path, known in shipped.items():
                file.write(json.dumps([path, base64.b64encode(known).decode()]) + "\n")
        written.replace(folder / f"{name}{_PAGES}")
    except OSError:
        written.unlink(missing_ok=True)
        raise


def load(run_dir: Path, url: str) -> dict[str, bytearray]:
    """What is known to be shipped to a URL, by whomever. A file that cannot be read tells of
    nothing: then more is shipped than needs to be."""
    found: dict[str, bytearray] = {}
    for path in own_files(run_dir / SHIPPING, _PAGES)[0]:
        try:
            with open(open_own(path)[0], encoding="utf-8") as file:
                if parsed(file.readline()).get("url") != url:
                    continue
                for line in file:
                    name, digests = parsed(line)
                    found[name] = bytearray(base64.b64decode(digests))
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return found


@contextmanager
def held(run_dir: Path, name: str) -> Iterator[bool]:
    """Whether nobody else ships what this name stands for; until the end nobody else does. Errors:
    OSError, also where the folder is a link: what is kept would be written elsewhere."""
    folder = run_dir / SHIPPING
    if is_elsewhere(folder):
        raise OSError(errno.ELOOP, "it is a link to another place", str(folder))
    folder.mkdir(exist_ok=True)
    with opened(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:  # a filesystem that has no locks
            yield True
        else:
            yield True
