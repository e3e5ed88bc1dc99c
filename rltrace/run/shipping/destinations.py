"""The URL that a run is shipped to: checked, made, and told again."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from rltrace.run.shipping.shipping_state import ShippingProgress, write_progress
from rltrace.trace.clock import node_id
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.metadata_validation import read_run_json, update_run_json
from rltrace.trace.transfer.store import Store, check_url, child, is_local, refuse_credentials

_OWN_MEMORY = "memory://"
_FOR_READING = "http https github gist git data reference zip tar libarchive"
_BEFORE_ANOTHER = "dir simplecache filecache blockcache cached"
_NO_PLACES = {
    **dict.fromkeys(_FOR_READING.split(), "for reading"),
    **dict.fromkeys(_BEFORE_ANOTHER.split(), "no place of its own"),
}
_GIVE_ANOTHER = "give a folder that can be written to, such as s3://bucket/runs or file:///mnt/runs"
_NEVER = {
    *(errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST),
    *(errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL),
}
"""Why a folder of a local disk cannot be made, and cannot later either. A disk that is full, or a
server that does not answer, is another matter."""


def check_ship(url: str) -> str:
    """The URL of a folder of runs. Errors: `RltraceError` for what is none, or cannot be one."""
    refuse_credentials(url)  # first: what follows repeats the URL
    if url.startswith(_OWN_MEMORY):
        raise WrongUsage("what is shipped to memory:// ends with its process")
    protocol = urlsplit(url).scheme
    if why := _NO_PLACES.get(protocol):
        raise WrongUsage(f"{url} cannot be shipped to, {protocol}:// is {why}: {_GIVE_ANOTHER}")
    return check_url(url)


def make_folder(runs_url: str) -> None:
    """Makes the folder at a URL, if on a local disk: others may be away for the moment, and are
    shipped to when they are back. Errors: `RltraceError` where it can never be written to."""
    try:
        if is_local(runs_url):
            Store(runs_url).try_out()
    except OSError as error:
        if error.errno in _NEVER:
            said = f"{runs_url} cannot be shipped to ({error.strerror})"
            raise WrongUsage(f"{said}: {_GIVE_ANOTHER}") from None


def url_of_run(runs_url: str, name: str) -> str:
    """Where a run of that name goes: jobs that begin in the same second, on machines that know
    nothing of each other, have names of their own there."""
    return child(runs_url, f"{name}-{os.urandom(3).hex()}")


def begin(run_dir: Path, runs_url: str) -> None:
    """Gives a run its place in the folder at `runs_url`, from which on it is shipped. Errors:
    OSError where that is a local disk that cannot be written to; others are tried later."""
    url = url_of_run(runs_url, run_dir.name)
    update_run_json(str(run_dir), shipped_to=url)
    write_progress(run_dir, node_id(), ShippingProgress(url))  # the job may fill the disk
    if is_local(url):  # others are opened by the agent: that may take seconds
        Store(url).create()


def shipped_to(run_dir: Path) -> str:
    """The URL that a run says it is shipped to; empty where it says none, or cannot be read."""
    with suppress(RltraceError):
        url = read_run_json(str(run_dir)).get("shipped_to")
        return url if isinstance(url, str) else ""
    return ""
