"""Makes replacements with the very parameters of their originals.

Code is written out for each shape of parameters, since a function that takes `*args` shows: it
holds what it was given until it returns, `inspect.getfullargspec` tells of it, and packing costs.
A replacement refers to no global name but builtins, and has the globals of its original, which
`torch.jit` resolves names in. Inside of `torch.compile` its `twin` stands for it, which records
nothing: calls of ours would break the graph.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any, NamedTuple

_FILE, _TWIN_FILE = "<frozen importlib._bootstrap of rltrace>", "<rltrace>"
"""`warnings` and `logging` do not count such levels of callers, `torch.compile` skips them."""

_VARIADIC, _KEYWORDS = 0x04, 0x08  # code flags: the function takes `*args`, `**kwargs`

# `Observer` says what the calls do. Between `begin` and `try`, in `finally` and around the stores
# nothing can strike (`job_exceptions`). `{call}` is `function(...)` with the arguments handed on,
# `{given}` what the observer is told of them.
_PLAIN = """
row = observer.begin({given})
try:
    {deeper}
    result = {awaits}{call}
except BaseException as error:
    error.__traceback__ = error.__traceback__.tb_next
    raise
finally:
    {shallower}
    if row is not None:
        try:
            row._batch.columns[1][row._slot] = -observer.clock
        except Exception as error:
            observer.unended(error)
    {back}
return result
"""

_TELL = """
try:
    observer.{what}
except BaseException:
    observer.cut(call)
    raise
"""

_TOLD = """
call = observer.begin({given})
try:
    {deeper}
    result = {awaits}{call}
    {delay}
except BaseException as error:
    error.__traceback__ = error.__traceback__.tb_next
    {shallower}
    {fail}
    {back}
    raise
{shallower}
{end_result}
{back}
return result
"""

_ITEMS = """
generator = {made}
received = thrown = None
while True:
    {begin}
    try:
        item = {step}
    except {stopped}:
        {drop}
        {return}
    except BaseException as error:
        {fail}
        raise
    {end_item}
    {passed}
"""

_ASYNC_ITERATION = """
{begin}
try:
    generator = {call}
    received = thrown = None
    while True:
        try:
            item = {step}
        except StopAsyncIteration:
            break
        {passed}
except BaseException as error:
    {fail}
    raise
{end_None}
"""

_STEP = "generator.{a}send(received) if thrown is None else generator.{a}throw(thrown)"

_PASSED = """
received = thrown = None
try:
    received = yield item
except GeneratorExit:
    {close}
    raise
except BaseException as error:
    thrown = error
"""

_STREAM = """
result = {kept_call}
return result if observer is None else observer.watched(result, {given})
"""

_TWIN = """
observer()
return {call}
"""

_PASS_ON = """
if observer is None:
    return ({awaits}{call})
"""

_DEEPER = """
observer.depth += 1
if observer.depth > observer.room:
    observer.more_room()
"""

_BACK = """
if observer.deep and not observer.depth:
    observer.less_room()
"""


class _Kind(NamedTuple):
    body: str
    is_async: bool = False
    awaits: str = ""
    deep: bool = False


_KINDS = {
    "plain": _Kind(_PASS_ON + _PLAIN, deep=True),
    "told": _Kind(_PASS_ON + _TOLD, deep=True),
    "plain coroutine": _Kind(_PASS_ON + _PLAIN, True, "await "),
    "told coroutine": _Kind(_PASS_ON + _TOLD, True, "await "),
    "delayed coroutine": _Kind(_PASS_ON + _TOLD, True, "await "),
    "plain iteration": _Kind(_PASS_ON + _PLAIN, awaits="yield from "),
    "told iteration": _Kind(_PASS_ON + _TOLD, awaits="yield from "),
    "items": _Kind(_PASS_ON + _ITEMS, awaits="yield from "),
    "async items": _Kind(_ITEMS, True),
    "async iteration": _Kind(_ASYNC_ITERATION, True),
    "stream": _Kind(_STREAM),
    "twin": _Kind(_TWIN),
}

_Shape = tuple[int, int, int, bool, bool]


def replacement_of(
    function: Any, kind: str, observer: Any, tells: bool = False, keeps: bool = False
) -> Any:
    """A function of a kind (`_KINDS`) that stands for `function` and tells `observer` of its calls,
    with their arguments if `tells`. If it `keeps` them they need not be handed on."""
    shape, names = _shape(function)
    code = _named(_compile(kind, tells, keeps, shape), names, shape[2])
    cells = {"function": function, "observer": observer}
    globals_ = getattr(function, "__globals__", None)
    own = isinstance(function, types.FunctionType)
    made = types.FunctionType(
        code,
        {} if globals_ is None else globals_,
        code.co_name,
        function.__defaults__ if own else None,
        tuple(types.CellType(cells[name]) for name in code.co_freevars),
    )
    if own:
        made.__kwdefaults__ = function.__kwdefaults__
    return made


def _shape(function: Any) -> tuple[_Shape, tuple[str, ...]]:
    """A function's parameters: how many are positional only, positional, keywords only; `*args`,
    `**kwargs`; all names. What has no code (a builtin, a bound method) takes anything."""
    if not isinstance(function, types.FunctionType):
        return (0, 0, 0, True, True), ("args", "kwargs")
    code = function.__code__
    variadic, keywords = bool(code.co_flags & _VARIADIC), bool(code.co_flags & _KEYWORDS)
    named = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: named + variadic + keywords]
    shape = (code.co_posonlyargcount, code.co_argcount, code.co_kwonlyargcount, variadic, keywords)
    return shape, names


def _named(code: types.CodeType, names: tuple[str, ...], keyword_only: int) -> types.CodeType:
    """The code of a shape, with the names of one function's parameters."""
    first = code.co_argcount
    known = {f"_k{n}": names[first + n] for n in range(keyword_only)}

    def const(value: Any) -> Any:
        if type(value) is tuple:
            return tuple(const(part) for part in value)
        return known.get(value, value) if type(value) is str else value

    own = code.co_varnames[len(names) :]
    consts = tuple(const(value) for value in code.co_consts)
    return code.replace(co_varnames=(*names, *own), co_consts=consts)


@cache
def _compile(kind: str, tells: bool, keeps: bool, shape: _Shape) -> types.CodeType:
    positional_only, positional, keyword_only, variadic, keywords = shape
    how = _KINDS[kind]
    places = [f"_{n}" for n in range(positional)]
    keyed = [f"_k{n}" for n in range(keyword_only)]
    parameters = places.copy()
    if positional_only:
        parameters.insert(positional_only, "/")
    if variadic or keyed:
        parameters.append("*_args" if variadic else "*")
    parameters += [*keyed, *(["**_kwargs"] if keywords else [])]
    args = "".join(f"{name}, " for name in places) + ("*_args, " if variadic else "")
    kwargs = "".join(f"{name!r}: {name}, " for name in keyed) + ("**_kwargs" if keywords else "")
    kept = [*places, *(["*_args"] if variadic else []), *(f"{name}={name}" for name in keyed)]
    kept += ["**_kwargs"] if keywords else []
    call, kept_call = (
        f"function({', '.join(words)})" for words in ([_handed_on(word) for word in kept], kept)
    )
    text = {
        "call": kept_call if keeps else call,
        "kept_call": kept_call,
        "made": kept_call if tells else call,  # asked for the arguments at each item
        "given": f"({args}), {{{kwargs}}}" if tells else "(), None",
        "awaits": how.awaits,
        "delay": "await observer.delay(call)" if kind == "delayed coroutine" else "pass",
        "deeper": _DEEPER.strip() if how.deep else "pass",
        "shallower": "observer.depth -= 1" if how.deep else "pass",
        "back": _BACK.strip() if how.deep else "pass",
    }
    passes_on = _PASS_ON not in how.body  # itself, without an observer: it cannot return a value
    begin = f"observer.begin({text['given']})"
    text["begin"] = f"call = {'None if observer is None else ' if passes_on else ''}{begin}"
    if how.is_async:
        close, text["step"] = "await generator.aclose()", f"await ({_STEP.format(a='a')})"
        text["stopped"], text["return"] = "StopAsyncIteration", "return"
    else:
        close, text["step"] = "generator.close()", _STEP.format(a="")
        text["stopped"], text["return"] = "StopIteration as stop", "return stop.value"
    text["passed"] = _PASSED.format(close=close).strip()
    for field, what in (
        *((f"end_{result}", f"end(call, {result})") for result in ("result", "item", "None")),
        ("fail", "fail(call, error)"),
        ("drop", "drop(call)"),
    ):
        tell = _TELL.format(what=what).strip()
        text[field] = _nested("if observer is not None:", tell) if passes_on else tell
    lines = []
    for line in how.body.strip().splitlines():  # each field is filled in at its line's indentation
        margin = line[: len(line) - len(line.lstrip())]
        lines.append(_indented(line.strip().format(**text), margin))
    head = f"{'async ' if how.is_async else ''}def replacement({', '.join(parameters)}):"
    source = _nested("def made(function, observer):", _nested(head, "\n".join(lines)))
    made = compile(source, _TWIN_FILE if kind == "twin" else _FILE, "exec", dont_inherit=True)
    return _code_in(_code_in(made, "made"), "replacement")


def _nested(head: str, body: str) -> str:
    return f"{head}\n{_indented(body, '    ')}"


def _indented(text: str, margin: str) -> str:
    return "\n".join(margin + line for line in text.splitlines())


def _handed_on(word: str) -> str:
    """An argument, after which its name refers to it no more."""
    stars = word[: len(word) - len(word.lstrip("*"))]
    keyword, equals, name = word.lstrip("*").rpartition("=")
    return f"{stars}{keyword}{equals}({name}, {name} := None)[0]"


def _code_in(code: types.CodeType, name: str) -> types.CodeType:
    found: list[Any] = [c for c in code.co_consts if getattr(c, "co_name", None) == name]
    inner: types.CodeType = found[0]
    return inner
