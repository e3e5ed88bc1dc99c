"""What of a model decides its costs: parameters, layers, heads, experts; from the table of usual
models, from a local config.json, or stated by hand."""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any

from rltrace.analysis.plan.constants import packaged
from rltrace.trace.errors import RltraceError, WrongUsage
from rltrace.trace.given_files import text_given

_PARAMETERS = re.compile(r"([0-9]*\.?[0-9]+)\s*([KMBT]?)", re.IGNORECASE)
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_TOO_LARGE = 1e9  # of what a config counts: layers, heads, experts, numbers of a vector
_DENSE_TENSORS = (
    9.0  # of a layer, as checkpoints hold them: four of attention, three of the MLP, two norms
)


@dataclass(frozen=True)
class Shape:
    """A model. `parameters` are all of them (what is moved and stored), `active` those that a token
    passes (what is computed). `latent` are the numbers that a layer caches of a token where these
    are no keys and values; 0: they are. `source` says where all this is from."""

    name: str
    parameters: float
    active: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int = 0
    chosen: int = 0
    latent: int = 0
    source: str = ""

    @property
    def is_mixture(self) -> bool:
        """Whether a token passes only some of its experts."""
        return self.experts > self.chosen > 0

    @property
    def weight_bytes(self) -> float:
        """One copy of the weights in two bytes each: 140 GB of 70B, 810 GB of 405B."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> float:
        """Cache of a token in two bytes: 2 (key and value) x 2 x kv_heads x head_dim x layers."""
        numbers = self.latent or 2 * self.kv_heads * self.head_dim
        return 2.0 * numbers * self.layers

    @property
    def routed(self) -> float:
        """Parameters in routed experts: total = rest + X, active = rest + X chosen / experts."""
        if not self.is_mixture:
            return 0.0
        return (self.parameters - self.active) / (1 - self.chosen / self.experts)

    @property
    def tensors(self) -> float:
        """How many tensors a checkpoint has: three of each expert."""
        return self.layers * (_DENSE_TENSORS + 3 * self.experts) + 3

    def read_bytes(self, tokens: float) -> float:
        """Bytes of weights that one pass of so many tokens reads: of a mixture all that some token
        chose, 1 - (1 - chosen / experts)^tokens of the experts."""
        if not self.is_mixture:
            return self.weight_bytes
        hit = 1 - math.pow(1 - self.chosen / self.experts, max(1.0, tokens))
        return 2 * (self.parameters - self.routed * (1 - hit))

    def attention_flop(self, square: float) -> float:
        """Forward FLOP of causal attention for a sequence whose squared length is `square`: 4 x T^2
        x heads x head_dim a layer, half of which the mask saves."""
        return 2.0 * square * self.heads * self.head_dim * self.layers


def by_name(name: str) -> Shape:
    """The shape of a model by its name, or of a local config.json or the folder that holds one.
    Errors: `RltraceError` where neither is known, with what comes near."""
    path = Path(name)
    # os.path: pathlib raises for a name that is longer than any file's.
    if path.name == "config.json" or os.path.isfile(path / "config.json"):
        return from_config(path if os.path.isfile(path) else path / "config.json")
    known = _known()
    found = known.get(_key(name))
    if found is None:
        near = get_close_matches(_key(name), known, 3, 0.5)
        like = f" (near it: {', '.join(known[key].name for key in near)})" if near else ""
        raise WrongUsage(
            f"the model {name!r} is not in the table{like}: give --params, or the path of its "
            "config.json"
        )
    return found


def by_size(parameters: float, active: float = math.nan) -> Shape:
    """A shape of so many parameters, with the layers and heads of the known model that is nearest
    in size (its kind, dense or mixture, first)."""
    active = parameters if math.isnan(active) else active
    mixture = active < parameters
    models = [s for s in _known().values() if s.is_mixture == mixture]
    near = min(models, key=lambda s: abs(math.log(s.parameters / parameters)))
    return replace(
        near,
        name=f"{_billions(parameters)}{f' ({_billions(active)} active)' if mixture else ''}",
        parameters=parameters,
        active=active,
        source=f"by hand; layers and heads are those of {near.name}",
    )


def from_config(path: Path) -> Shape:
    """The shape that a config.json of the usual kind (Llama, Qwen, Mixtral, DeepSeek) tells.
    Errors: `RltraceError` where it cannot be read or lacks what is needed."""
    try:
        data = json.loads(text_given(path))
    except OSError as error:
        raise RltraceError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RltraceError(f"{path} is no JSON file: {error}") from None
    if not isinstance(data, dict):
        raise RltraceError(f"{path} holds no configuration of a model")
    inner = data.get("text_config")
    config: dict[str, Any] = inner if isinstance(inner, dict) else data
    try:
        return _of_config(config, str(path))
    except ValueError as error:
        raise WrongUsage(f"{path} does not tell the model's shape: {error}") from None


def _of_config(config: dict[str, Any], path: str) -> Shape:
    number = partial(_number, config)
    hidden, layers = number("hidden_size", least=1), number("num_hidden_layers", least=1)
    heads = number("num_attention_heads", least=1)
    kv_heads = number("num_key_value_heads", otherwise=heads, least=1)
    head_dim = number("head_dim", otherwise=hidden // heads, least=1)
    experts = number("num_experts", "num_local_experts", "n_routed_experts", otherwise=0)
    chosen = number("num_experts_per_tok", otherwise=0) if experts else 0
    latent = number("kv_lora_rank", otherwise=0)
    if latent:
        latent += number("qk_rope_head_dim", otherwise=0)
        attention = _latent_attention(config, hidden, heads)
    else:
        attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    wide = 3 * hidden * number("intermediate_size", otherwise=0)
    expert = 3 * hidden * number("moe_intermediate_size", "intermediate_size") if experts else 0
    dense_layers = number("first_k_dense_replace", otherwise=0) if experts else layers
    mixed = layers - dense_layers
    shared = expert * number("n_shared_experts", otherwise=0) + hidden * experts
    ends = hidden * number("vocab_size") * (1 if config.get("tie_word_embeddings") else 2)
    rest = layers * attention + dense_layers * wide + mixed * shared + ends
    total = float(rest + mixed * experts * expert)
    active = float(rest + mixed * chosen * expert)
    name = str(config.get("_name_or_path") or Path(path).parent.name or "model")
    if chosen > experts:
        raise ValueError(f"a token cannot pass {chosen} of {experts} experts")
    return Shape(
        name, total, active, layers, hidden, heads, kv_heads, head_dim, experts, chosen, latent,
        f"{path}; parameters counted from it",
    )  # fmt: skip


def _number(
    config: dict[str, Any], *names: str, otherwise: int | None = None, least: int = 0
) -> int:
    """The first of these that is stated. Errors: `ValueError`, what is wrong in words."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value < _TOO_LARGE:
            raise ValueError(f"{name} cannot be {value!r}")
        return int(value)
    if otherwise is None:
        raise ValueError(f"{names[0]} is missing")
    return otherwise


def _latent_attention(config: dict[str, Any], hidden: int, heads: int) -> int:
    """Parameters of multi-head latent attention in a layer (DeepSeek-V2, arXiv 2405.04434)."""
    number = partial(_number, config)
    rank, rope = number("kv_lora_rank"), number("qk_rope_head_dim")
    nope, value = number("qk_nope_head_dim"), number("v_head_dim")
    query = number("q_lora_rank", otherwise=0)
    asks = heads * (nope + rope)
    queries = query * (hidden + asks) if query else hidden * asks
    return queries + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def parameters(text: str, what: str = "--params") -> float:
    """`405B` -> 4.05e11. Errors: `RltraceError` for what is no size of a model."""
    found = _PARAMETERS.fullmatch(text.strip())
    value = float(found[1]) * _UNITS[found[2].upper()] if found else math.nan
    if not value >= 1e6:
        raise WrongUsage(f"{what} must be a number like 7B or 405B, not {text!r}")
    return value


def _billions(value: float) -> str:
    return f"{value / 1e9:.4g}B"


def _key(name: str) -> str:
    short = name.rsplit("/", 1)[-1].lower()
    return re.sub(r"-(instruct|base|chat|thinking|hf|it)(-\d+)?$", "", short)


@cache
def _known() -> dict[str, Shape]:
    data = packaged("models")
    source = f"table of {data['date']}: {data['source']}"
    found = {}
    for entry in data["model"]:
        total = entry["total"] * 1e9
        shape = Shape(
            name=entry["name"],
            parameters=total,
            active=entry.get("active", entry["total"]) * 1e9,
            source=source,
            **entry["shape"],
        )
        for name in (entry["name"], *entry.get("also", ())):
            found[_key(name)] = shape
    return found
