"""Iterators that a hooked function returns: each item is a call of its own.

What hands out a model's weights one by one (`verl`'s engines) returns a generator beside other
things; how long an item takes and how large it is, is known only while somebody consumes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltrace.hooks.observing import Observer


def watch_items(
    result: Any, place: int | None, observer: Observer, args: tuple[Any, ...], kwargs: Any
) -> Any:
    """`result`, with the iterator at `place` of it (-1: itself) replaced by a generator of the same
    items. Whatever has no iterator there is given back as it is."""
    if place is None or place < 0:
        return _items(result, observer, args, kwargs) if _is_iterator(result) else result
    if type(result) is not tuple or len(result) <= place or not _is_iterator(result[place]):
        return result
    items = _items(result[place], observer, args, kwargs)
    return (*result[:place], items, *result[place + 1 :])


def _is_iterator(value: Any) -> bool:
    """Only what can be gone over once anyway: a list or a view may be asked for its length."""
    return hasattr(type(value), "__next__") and hasattr(type(value), "__iter__")


def _items(
    iterator: Iterator[Any], observer: Observer, args: tuple[Any, ...], kwargs: Any
) -> Iterator[Any]:
    try:
        while True:
            call = observer.begin(args, kwargs)
            try:
                item = next(iterator)
            except StopIteration:
                observer.drop(call)
                return
            except BaseException as error:
                observer.fail(call, error)
                raise
            observer.end(call, item)
            yield item
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
