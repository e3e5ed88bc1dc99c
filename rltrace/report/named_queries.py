"""The queries that come with rltrace: dashboards/sql/<name>.sql, asked as `@<name>`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.dashboards import folder
from rltrace.trace.errors import UNREADABLE, RltraceError, WrongUsage, did_you_mean
from rltrace.trace.untrusted_files import text_given

_COMMENT = "-- "


@dataclass(frozen=True)
class NamedQuery:
    """`explains` is the first line of the file, a comment: what it answers, in which units."""

    name: str
    explains: str
    sql: str


def named_queries() -> tuple[NamedQuery, ...]:
    return tuple(_read(path) for path in sorted(folder("sql").glob("*.sql")))


def named_query(name: str) -> NamedQuery:
    """The query of a name, with or without its @, or of a file *.sql. Errors: `RltraceError`."""
    wanted = name.removeprefix("@")
    if wanted.endswith(".sql"):
        return _read(Path(wanted))
    known = [query.name for query in named_queries()]
    if wanted in known:
        return _read(folder("sql") / f"{wanted}.sql")
    near = did_you_mean(f"@{wanted}", *(f"@{one}" for one in known))
    raise WrongUsage(f"there is no query @{wanted}{near}: `rltrace query --list` shows all")


def _read(path: Path) -> NamedQuery:
    try:
        sql = text_given(path)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "it is no text"
        raise RltraceError(f"{path} cannot be read: {said}", UNREADABLE) from None
    return NamedQuery(path.stem, sql.partition("\n")[0].removeprefix(_COMMENT), sql)
