"""Command lines without what looks like a secret: keys, tokens, passwords, URLs with credentials.

What is left out shows as `REDACTED`. A value is a secret by its name (`--api-key`,
`HF_TOKEN=`, `"password": `) or by its form (`hf_…`, `sk-…`, a key file). Names that RL jobs
are full of (`--max-tokens`, `prompt_key`, `eos_token=</s>`) are none. Standard library only.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Pattern
    from typing import Any

REDACTED = "[redacted]"

_OF_NAMES = (
    *("key", "token", "secret", "pass", "pwd", "credential", "auth", "bearer", "signature", "sig="),
    *("cookie", "jwt", "creds", "webhook"),
)
_OF_FORMS = (
    *("sk-", "sk_", "rk_", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-"),
    *("xox", "akia", "asia", "aiza", "eyj", "ya29.", "npm_", "pypi-", "-----begin", "wandb_v"),
    *("nvapi-", "gsk_", "r8_", "xapp-", "sg.", "xai-", "pplx-", "csk-", "fw_", "tgp_v", "lsv2_"),
    *("dop_v", "dckr_pat_", "absk", "hooks.slack.com", "/api/webhooks"),
    *("e2b_", "tvly-", "jina_", "fc-", "rpa_", "hvs.", "dapi"),
)
"""A word that has none of these in it holds no secret: most processes never load `re`."""

_SECRET = {
    *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "pwd"),
    *("credential", "credentials", "apikey", "accesskey", "secretkey", "privatekey"),
    *("authorization", "auth", "authtoken", "accesstoken", "cookie", "sig", "bearer", "authkey"),
    *("apitoken", "hftoken", "jwt", "creds", "webhook", "privkey"),
}
"""Last words of a name whose value is a secret."""

_SEVERAL = {"keys", "secrets", "passwords", "credentials", "creds"}
"""Such words that name more than one."""

_ENDS_OF_SECRETS = ("password", "passwd", "apikey")
"""Ends of such words where nothing divides them: `PGPASSWORD`."""

_SECRET_KEYS = {
    *("access", "account", "anthropic", "api", "app", "auth", "aws", "azure", "client", "comet"),
    *("deploy", "encryption", "gcp", "google", "hf", "license", "master", "neptune", "openai"),
    *("private", "sas", "secret", "service", "shared", "signing", "ssh", "storage"),
    *("subscription", "swanlab", "together", "wandb", "kaggle", "serper", "serpapi", "tavily"),
    *("jina", "langfuse", "huggingface", "deepseek", "mistral", "cohere", "groq", "gemini"),
    *("runpod", "dashscope"),
}
"""Words before "key" that make it a secret; other keys name a column or an entry."""

_PASSES = {"", "admin", "auth", "db", "ftp", "mysql", "pg", "redis", "root", "smtp", "ssh", "user"}
"""Words before "pass" that make it a password; others count one (`n_pass`)."""

_TOKENS_OF_TEXT = {
    *("after", "before", "begin", "bos", "by", "cls", "each", "end", "eos", "extra", "first"),
    *("image", "last", "mask", "max", "min", "new", "next", "no", "num", "pad", "per", "sep"),
    *("single", "special", "start", "stop", "think", "tool", "unk", "video", "vision", "audio"),
}
"""Words before "token" that make it one of a text."""

_SHORTEST_KEY = 20
_LONGEST_NAME = 200  # characters of a name that are looked at
_PLAIN = {"", "true", "false", "none", "null", "yes", "no", "on", "off", "auto"}


def redacted(words: Iterable[object]) -> list[str]:
    """The words of a command line, secrets left out."""
    texts = [str(word) for word in words]
    logs_in = _login(texts)
    found = []
    option = ""  # the word before, if its value follows
    for number, text in enumerate(texts):
        is_option = text.startswith("-")
        follows = bool(option) and not is_option and _names_secret(option)
        hidden = (follows and not _is_plain(option, text)) or (
            not is_option and (number == logs_in + 1 or (number > logs_in and _is_key(text)))
        )
        found.append(REDACTED if hidden else _without_secrets(text))
        if not (follows and _names_several(option)):
            option = text if is_option and "=" not in text and _has(text, _OF_NAMES) else ""
    return found


def _login(texts: list[str]) -> int:
    """Where the word is that a key follows, with options and a URL or without: `wandb login KEY`;
    behind all of them where there is none."""
    for number in range(1, len(texts)):
        if texts[number] == "login" and texts[number - 1].rpartition("/")[2] == "wandb":
            return number
    return len(texts)


def _is_key(text: str) -> bool:
    """Whether a word can be a key of wandb's."""
    return len(text) >= _SHORTEST_KEY and text.replace("-", "").replace("_", "").isalnum()


def _has(text: str, hints: tuple[str, ...]) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in hints)


def _names_secret(name: str) -> bool:
    """Whether a name (`hf_token`, `apiKey`, `actor.wandb-key`) is that of a secret."""
    words, is_numbered = _words(name)
    if not words:
        return False
    last = words[-1]
    before = words[-2] if len(words) > 1 else ""
    if last in ("key", "keys"):
        return before in _SECRET_KEYS
    if last == "token":
        return before not in _TOKENS_OF_TEXT
    if last == "signature":
        return before in ("amz", "goog")  # of a signed URL
    if last == "pass":
        return before in _PASSES and not is_numbered
    return last in _SECRET or last.endswith(_ENDS_OF_SECRETS)


def _names_several(name: str) -> bool:
    """Whether a name that is that of a secret is that of several."""
    return _words(name)[0][-1] in _SEVERAL


def _words(name: str) -> tuple[list[str], bool]:
    """The words of a name in small letters, without the number at its end (`API_KEY_2`), and
    whether there is one."""
    words = [word.lower() for word in _pattern("word").findall(name[-_LONGEST_NAME:])]
    is_numbered = len(words) > 1 and words[-1].isdigit()
    return words[:-1] if is_numbered else words, is_numbered


def _is_plain(name: str, value: str) -> bool:
    """Whether a value is none that anybody would hide: a switch, or the number of a token."""
    return value.lower() in _PLAIN or (
        value.isdigit() and name.lower().rstrip("0123456789_").endswith("token")
    )


def _without_secrets(text: str) -> str:
    """A word with the secrets inside it replaced."""
    if "://" in text and "@" in text:
        text = _pattern("url").sub(rf"\1{REDACTED}@", text)
    if _has(text, ("bearer", "basic", "authorization")):
        text = _pattern("scheme").sub(rf"\1 {REDACTED}", text)
    if _has(text, _OF_FORMS):
        text = _pattern("form").sub(REDACTED, text)
    if "wandb" in text and "login" in text:
        text = _pattern("login").sub(rf"\1{REDACTED}", text)
    if not _has(text, _OF_NAMES):
        return text
    if "-" in text and " " in text:
        text = _without_values("option", text)
    return _without_values("name", text) if "=" in text or ":" in text else text


def _without_values(kind: str, text: str) -> str:
    """A word with the values left out that follow a `name` of a secret (`key=VALUE`), or an
    `option` that is one (`--key VALUE`, in the command of a shell)."""
    parts = []
    at = 0
    while found := _pattern(kind).search(text, at):
        parts.append(text[at : found.end()])
        at = found.end()
        name, quote = found.group("name", "quote")
        if not _names_secret(name) and not _signs(text, found):
            continue
        value = _pattern(_ended_by(name, quote, text, at)).match(text, at).group()
        if kind == "name" and not quote and _is_all(text, found):
            value = text[at:]
        parts.append(value if _is_plain(name, value) or REDACTED in value else REDACTED)
        at += len(value)
        if quote in ("'", '"') and text[at : at + 1] == quote:
            parts.append(quote)
            at = _pattern("joined").match(text, at + 1).end()
    return "".join((*parts, text[at:]))


def _signs(text: str, found: Any) -> bool:
    """Whether a name is that of a signed URL's signature."""
    at = found.start()
    return found["name"].lower() == "signature" and at > 0 and text[at - 1] in "?&"


def _ended_by(name: str, quote: str, text: str, at: int) -> str:
    """Which expression a value is that begins at a place, behind a quote or none."""
    if quote.strip("\\"):
        return quote if len(quote) == 1 else f"escaped {quote[-1]}"
    if text[at : at + 1] in ("[", "{"):
        return text[at]
    return "values" if _names_several(name) else "value"


def _is_all(text: str, found: Any) -> bool:
    """Whether a word is one setting and nothing else, so that its value is all of the rest."""
    return (
        not text[: found.start()].strip("-+")
        and text[found.end() - 1] == "="
        and (text[0] == "-" or " " not in text)
    )


_PIECES = "|".join(
    (
        r"\$?'(?=[\w'\"$\\/+=-])(?:\\.|[^'\\])*(?:'|\Z)",
        r"\$?\"(?=[\w'\"$\\/+=-])(?:\\.|[^\"\\])*(?:\"|\Z)",
        r"\$\([^)]*(?:\)|\Z)",
        r"`[^`]*(?:`|\Z)",
        r"\\.",
    )
)
"""What a shell joins with what stands beside it, to one word."""

_FORMS = "|".join(
    (
        r"sk-[\w-]{16,}",  # OpenAI, Anthropic
        r"[sr]k_(?:live|test)_\w{16,}",
        r"hf_\w{16,}",
        r"gh[pousr]_\w{20,}|github_pat_\w{20,}",
        r"glpat-[\w-]{16,}",
        r"xox[abeprs]-[\w-]{10,}",
        r"(?:AKIA|ASIA)[0-9A-Z]{16}",
        r"AIza[\w-]{30,}",
        r"ya29\.[\w-]{20,}",
        r"npm_\w{30,}",
        r"pypi-[\w-]{30,}",
        r"wandb_v\d_\w{20,}",
        r"nvapi-[\w-]{20,}",
        r"gsk_\w{20,}",
        r"r8_\w{30,}",
        r"xapp-[\w-]{20,}",
        r"SG\.[\w-]{16,}\.[\w-]{16,}",
        r"(?:xai|pplx|csk)-\w{32,}",
        r"fw_[A-Za-z0-9]{20,}",
        r"tgp_v\d_[\w-]{20,}",
        r"lsv2_(?:pt|sk)_\w{20,}",
        r"dop_v\d_\w{32,}",
        r"dckr_pat_[\w-]{20,}",
        r"ABSK[\w+/=]{40,}",
        r"e2b_[0-9a-f]{32,}|tvly-[\w-]{20,}|jina_\w{40,}|fc-[0-9a-f]{32}|rpa_\w{40,}",
        r"hvs\.[\w-]{20,}|dapi[0-9a-f]{32}",
        r"hooks\.slack\.com/services/[\w/-]{10,}",
        r"discord(?:app)?\.com/api/webhooks/\d+/[\w-]{10,}",
        r"eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*",  # a JSON web token
    )
)

_EXPRESSIONS = {
    "'": "[^']*",
    '"': r'(?s:\\.|[^"\\])*',
    "escaped '": r"[^'\\]*",
    'escaped "': r'[^"\\]*',
    "[": r"\[[^\]]*\]?",
    "{": r"\{[^}]*\}?",
    "value": rf"(?s:{_PIECES}|[^\s'\"&;,)}}\\`])*",
    "values": rf"(?s:{_PIECES}|[^\s'\"&;)}}\\`])*",
    "joined": rf"(?s:{_PIECES}|[\w./+=@%-])*",
    "word": r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+",
    "url": r"(\b[a-zA-Z][\w+.-]{0,30}://)[^/?#\s'\"]+@",
    "scheme": r"\b([Bb]earer|[Bb]asic|BEARER|BASIC|[Aa]uthorization['\"]?\s*[:=]\s*['\"]?[\w-]+)"
    r"\s+[\w+/=.~-]{6,}",
    "login": r"(\bwandb[\s.]+login(?:\s+--[\w-]+(?:=\S+|\s+\S+://\S+)?)*[\s(]+"
    r"(?:key=)?['\"]?)[\w-]{20,}",
    "form": rf"(?<![\w-])(?:{_FORMS})|(?s:-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
    r".*?(?:-----END [A-Z ]*PRIVATE KEY(?: BLOCK)?-----|\Z))",
    "name": r"(?<![\w.-])(?P<name>[\w.-]+)\\*['\"]?\]?\s*(?:=>|:=|==?|:(?!//))"
    r"(?:\s|\\\n)*(?P<quote>(?:\\*['\"])?)",
    "option": r"(?<![\w.-])--?(?P<name>[A-Za-z][\w.-]*)(?:\s|\\\n)+(?!-)"
    r"(?P<quote>(?:\\*['\"])?)",
}

_compiled: dict[str, Pattern[str]] = {}


def _pattern(which: str) -> Any:
    """An expression, compiled when first needed: `re` takes a process some milliseconds."""
    if which not in _compiled:
        import re

        _compiled[which] = re.compile(_EXPRESSIONS[which])
    return _compiled[which]
