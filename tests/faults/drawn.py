"""Random texts, and command lines and jobs that are full of them."""

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
        [f"postgres://{text}@db/x?n=1"],
        [f"https://example.org/?sig={text}"],
        ["-H", f"Authorization: Bearer {text}"],
        ["-H", f"Cookie: a=1; sid={text}"],
        [json.dumps({"name": name, "value": text})],
        [f"--{name}", json.dumps({"n": 1, "deep": [{name: text}]})],
        [json.dumps([f"--{name}", text])],
        [f"run-{text}"],
        ["-c", f"train --{name} {text}"],
        ["-m", text],
        ["login", text],
        [f"[{text}]"],
        [f"1,{text}"],
        [f"/no/such/{text}"],
    )
    return draw.choice(shapes)


RAISING = """
import os, subprocess, sys, types
import rltrace

with open(os.environ["TEXTS"]) as file:
    texts = [line.rstrip("\\n") for line in file]

class Tools:
    pass

class Number(int):
    def __repr__(self): return self.text
    __str__ = __repr__

def word(text): return "w" + "".join(c for c in text if c.isalnum())
def run(code, name): exec(compile(code, name, "exec"), {"__name__": "generated"})
def execs(text): run("raise TypeError('''" + text + "''')", "<completion>")
def names(text): eval(compile(word(text) + " + 1", text, "eval"))
def files(text): run("def f():\\n\\n len(5)\\nf()", text)
def freezes(text): run("len(5)", f"<frozen {text}>")
def gets(text): getattr(Tools(), text)
def says(text): raise TypeError(f"cannot score {text!r}")
def imports(text): __import__(word(text))
def keys(text): {}[text]
def counts(text): raise ArithmeticError(text)
def system(text): raise OSError(text)
def opens(text): open("/" + text)
def classes(text): run(f"class {word(text)}(ValueError): pass\\nraise {word(text)}()", "<x>")
def inside(text): exec(f"class {word(text)}(OSError): pass\\nraise {word(text)}(2, 'x')", globals())
def types_(text): raise type(text, (LookupError,), {})()
def metas(text):
    raise type(type)("M", (type,), {"__name__": text})("x", (KeyError,), {"__module__": "os"})()
def modules(text):
    sys.modules[text] = types.ModuleType(text)
    raise type(text, (KeyError,), {"__module__": text})()

ways = (execs, names, files, freezes, gets, says, imports, keys, counts, system, opens, classes,
        inside, types_, metas, modules)
for way in ways:
    pid = os.fork()  # each tells as much as a process may
    if pid:
        os.waitpid(pid, 0)
        continue
    for n, text in enumerate(texts):
        number = Number(7)
        number.text = text
        try:
            with rltrace.step(n), rltrace.span("reward", tokens=number):
                with rltrace.reward(str(n), value=type(word(text), (), {})()):
                    rltrace.counter("loss", number)
                    way(text)
        except Exception:
            pass
    os._exit(0)
environment = {**os.environ, "RLTRACE_ADAPTERS": "own_loop=own_adapter:Own"}
sys.exit(subprocess.run([sys.executable, "reads.py"], env=environment).returncode)
"""
"""Each text is in what is raised in a step and in a reward, in all of these ways."""

LOOP = """
import os

def act(text): return text
def steps():
    with open(os.environ["TEXTS"]) as file:
        for line in file:
            act(line.rstrip("\\n"))
"""
ADAPTER = """
from rltrace.testing.inside.hooks import Adapter, Hook

def read(call):
    exec(compile(f"raise NameError({call.argument('text')!r})", call.argument("text"), "exec"))

class Own(Adapter):
    framework = "own_loop"
    hooks = [Hook("own_loop:act", stage="reward", after=read)]
"""
READS = "import own_loop\nown_loop.steps()\n"
