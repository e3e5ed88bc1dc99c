"""Makes texts safe: command lines without secrets, names without control characters.

The program, names of options, numbers, words that frameworks take (`WORDS`) and paths that are
there stay; `REDACTED` stands for every other value, so nothing has to look like a secret to be left
out. Names of spans, paths and arguments are whatever the job has: JSON and CSV hold them as they
are, `visible` is for what people read. Standard library only, and little of it: every traced
process does this at its start.
"""

from __future__ import annotations

import os

from rltrace.trace.job_exceptions import contained

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


REDACTED = "[redacted]"

_LAUNCHERS = "accelerate bash deepspeed env job launch nice python python3 ray run sh srun submit \
torchrun uv"
LAUNCHERS = frozenset(_LAUNCHERS.split())  # words that start a program named behind them
_WORDS = """true false none null yes no on off auto default nan inf -inf all - -- async sync
colocate colocate_async colocated disaggregated one-step-off separate_async actor learner wait
rltrace relay delta delta_sharded disk nccl xccl hccl gloo mooncake cpu cuda gpu npu vllm sglang
hf fsdp fsdp2 megatron bf16 bfloat16 fp16 float16 fp32 float32 fp8 int8 int4 eager sdpa selective
flash_attention_2 full token token_truncate sequence seq-mask-tis binary_kl loglinear decoupled
tis mean_filter grouped_mm rate_limited naive dapo grpo ppo gae rloo reinforce reinforce_baseline
remax reinforce_plus_plus reinforce_plus_plus_baseline opo gspo dr_grpo bnpo luspo cispo gpg
group_norm online dpo distillation server group batch steps epoch best last console wandb
tensorboard swanlab mlflow adamw adam sgd constant cosine linear sort reverse copy repeat
expression lookup clip_cov kl_cov geo_mean sapo vespo dppo_tv dppo_kl
plain truncated aipo gdpo grpo_passk grpo_vectorized rloo_vectorized optimal_token_baseline
tir_optimal_token_baseline a2c reinforce++ flash_reinforce ppo_trainer ppo_megatron_trainer
one_step_off_ppo_trainer one_step_off_ppo_megatron_trainer fully_async_ppo_trainer
fully_async_ppo_megatron_trainer"""
WORDS = LAUNCHERS.union(_WORDS.split(), ("", "online dpo", REDACTED))
"""What settings are set to by a word, as far as it matters to anybody who reads them."""

_LONGEST_NUMBER = 12  # characters: a longer one may be a key
_LONGEST_LIST = 8
_LONGEST_PART, _LONGEST_NAME = 16, 120  # characters of the name of an option


def redacted(words: Iterable[object], program: int = 0) -> list[str]:
    """A command line without values that may harm; `program`: the place of its name."""
    found: list[str] = []
    launching = is_named = False  # a module may be named next; the program has been
    before = ""
    for place, text in enumerate(map(str, words)):
        if place in (0, program) or is_harmless(text):
            found.append(text)
            launching = (launching or _launches(text)) and not is_named
            is_file = place > 0 and not _launches(text) and os.path.isfile(text)
            is_named |= is_file or place == program > 0
        elif launching and not is_named and before == "-m" and text.islower() and _is_name(text):
            found.append(text)
            is_named = True
        else:
            found.append(_without_value(text, before[:1] == "-" and "=" not in before))
            launching &= found[-1] == text
            is_named |= before == "-c"
        before = text
    return found


def redacted_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """What a process states of itself, redacted. A setting that is no plain value is left out."""
    found = dict(facts)
    for name in {"objective", "advantage"} & facts.keys():
        found[name] = _redacted_value(facts[name])
    if isinstance(facts.get("settings"), dict):
        found["settings"] = {
            name: _redacted_value(value)
            for name, value in facts["settings"].items()
            if (value is None or isinstance(value, (bool, int, float, str)))
            and _is_name(name.lstrip("+-"))
        }
    return found


def _redacted_value(value: object) -> object:
    return value if not isinstance(value, str) or is_harmless(value) else REDACTED


def redacted_urls(text: str) -> str:
    """A sentence about addresses, without what lets somebody in there."""
    import re

    return re.sub(r"\?\S+", f"?{REDACTED}", re.sub(r"(://)[^/\s]*@", rf"\1{REDACTED}@", text))


def is_harmless(value: str) -> bool:
    """Whether it is a number, a word of frameworks, a path that is there, or a list of these."""
    if value.lower() in WORDS or _is_number(value):
        return True
    if value[:1] not in ("-", "") and "=" not in value and os.path.exists(value):
        return True
    if "," not in value:
        return False
    parts = value.strip("[]").split(",")
    return 1 < len(parts) <= _LONGEST_LIST and all(
        part.strip(" '\"").lower() in WORDS or _is_number(part) for part in parts
    )


def _is_number(text: str) -> bool:
    if not text or len(text) > _LONGEST_NUMBER or text.strip("0123456789.eE+-_"):
        return False  # most words: an exception for each would take longer
    with contained(ValueError):
        return float(text) is not None
    return False


def _launches(text: str) -> bool:
    name = os.path.basename(text)
    return name.startswith("python") or name in LAUNCHERS


def _without_value(text: str, may_be_value: bool) -> str:
    """An option, or `name=value`, without its value; other words are values."""
    name, equals, value = text.partition("=")
    if text[:2] == "--":
        is_option = name.islower() and _is_name(name[2:])
    elif text[:1] == "-":
        is_option = text[1:2].isalpha() and (name[2:] == "" or _is_number(name[2:]))
    else:  # a value that is encoded ends in `=`
        is_option = value.strip("=") != "" and _is_name(name.lstrip("+~"))
        is_option &= is_harmless(value) or not may_be_value
    if not is_option:
        return REDACTED
    return f"{name}={value if is_harmless(value) else REDACTED}" if equals else text


def _is_name(text: str) -> bool:
    """Whether people name an option so: a key mixes letters with digits, small with large."""
    parts = text.replace("-", "_").replace(".", "_").split("_")
    return bool(text) and len(text) <= _LONGEST_NAME and all(map(_is_word, parts))


def _is_word(part: str) -> bool:
    if len(part) <= _LONGEST_PART and part.isascii() and part.isalpha() and part.islower():
        return True  # most are
    letters = part.strip("0123456789")
    large = sum(map(str.isupper, letters))
    return (
        part.isascii()
        and len(part) <= _LONGEST_PART
        and len(part) - len(letters) <= 3
        and (not letters or letters.isalpha())
        and (large == len(letters) or 4 * large <= len(letters) or letters.istitle())
    )


_MARKERS = "\u2028\u2029"  # spaces to Python, ends of lines to some terminals


def visible(text: str, longest: int | None = None) -> str:
    """The text on one line: escapes (`\\x1b`) for what cannot be printed, its middle elided."""
    if not text.isprintable():
        text = "".join(map(_printed, text))
    if longest is None or len(text) <= longest:
        return text
    head = longest // 3
    return f"{text[:head]}…{text[len(text) - (longest - head - 1) :]}"


def visible_lines(text: str) -> str:
    """As `visible`, of several lines."""
    return "\n".join(visible(line) for line in text.split("\n"))


def _printed(c: str) -> str:
    """Escaped where it is a control character, or turns the direction."""
    if c.isprintable() or (c.isspace() and c >= "\xa0" and c not in _MARKERS):
        return c
    return c.encode("unicode_escape", "backslashreplace").decode()
