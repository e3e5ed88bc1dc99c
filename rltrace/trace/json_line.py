"""One line of JSON without the `json` module, whose import would cost every traced process 3 ms."""

from __future__ import annotations

_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    0x7F: "\\u007f",
}


def dumps(value: object) -> str:
    """JSON text of str, int, float, bool, None and of lists and dicts of them; anything else is
    written as its `str()`. Not-a-number becomes null, since JSON has no word for it. To be encoded
    with the error handler "backslashreplace", which turns lone surrogates into JSON's escapes."""
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(dumps, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{dumps(str(k))}:{dumps(v)}" for k, v in value.items()) + "}"
    return '"' + str(value).translate(_ESCAPES) + '"'
