"""Random texts, and command lines that are full of them."""

from __future__ import annotations

import base64
import json
import random
import string

NAMES = (
    *("api-key", "password", "hf_token", "judge_key", "passcode", "vault-secret-id", "model.path"),
    *("run-name", "header", "o", "prompt", "max-tokens", "reward.remote_url", "trainer.project"),
)


def texts(draw: random.Random, count: int) -> list[str]:
    """Keys, passwords and words, in many an alphabet; none is in another."""
    return [_text(draw) for _ in range(count)]


def _text(draw: random.Random) -> str:
    data = draw.randbytes(draw.randint(12, 30))
    kind = draw.randrange(5)
    if kind == 0:
        return data.hex()
    if kind == 1:
        return base64.urlsafe_b64encode(data).decode().lstrip("-_=")
    if kind == 2:  # words that no rule of keys knows
        return " ".join("".join(draw.choices(string.ascii_lowercase, k=6)) for _ in range(4))
    if kind == 3:
        return "".join(draw.choices(string.ascii_letters + string.digits + "#/@:!&;,.+-_", k=20))
    return "".join(draw.choices(string.digits, k=18))


def words_of(draw: random.Random, text: str) -> list[str]:
    """A part of a command line that has the text in it."""
    name = draw.choice(NAMES)
    plain = name.replace("-", "_")
    letter = draw.choice(string.ascii_letters)
    shapes = (
        [text],
        [f"--{name}", text],
        [f"--{name}={text}"],
        [f"-{letter}", text],
        [f"-{letter}{text}"],
        [f"--{name}", f"-{text}"],
        [f"{plain.upper()}={text}"],
        [f"++{plain}.url={text}"],
        ["--env", f"{plain.upper()}={text}"],
        [f"https://me:{text}@example.org/x"],
        [f"https://example.org/?sig={text}"],
        ["-H", f"Authorization: Bearer {text}"],
        [json.dumps({"name": name, "value": text})],
        [f"--{name}", json.dumps({"n": 1, "deep": [{name: text}]})],
        [f"run-{text}"],
        ["-c", f"train --{name} {text}"],
        ["-m", text],
        [f"[{text}]"],
        [f"1,{text}"],
        [f"/no/such/{text}"],
    )
    return draw.choice(shapes)
