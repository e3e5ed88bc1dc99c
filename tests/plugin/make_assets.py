"""Makes a tiny random Qwen2, a tokenizer of characters and prompts `a+b=` as the jobs of a
framework take them; no network: `make_assets.py {verl,openrlhf,trl} FOLDER`."""

from __future__ import annotations

import json
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from string import ascii_letters, ascii_lowercase
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = (
    "<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<role:system>", "<role:user>",
    "<role:assistant>",
)  # fmt: skip
CHAT = (
    "{% for m in messages %}<|im_start|><role:{{ m['role'] }}>{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|><role:assistant>{% endif %}"
)
CHARACTERS = {"verl": "0123456789+-=? \n" + ascii_lowercase}
MOST_CHARACTERS = "0123456789 +-*/=?.,:;!()[]{}<>_'\"\n" + ascii_letters

SMALL = {"hidden_size": 64, "intermediate_size": 128, "tie_word_embeddings": True}
MODELS: dict[str, dict[str, Any]] = {
    "verl": {**SMALL, "vocab_size": 49, "max_position_embeddings": 512},
    "openrlhf": {
        "hidden_size": 128,
        "intermediate_size": 256,
        "tie_word_embeddings": False,
        "vocab_size": 96,
        "max_position_embeddings": 2048,  # heads of 32: vLLM takes no smaller
    },
    "trl": {**SMALL, "vocab_size": 112, "max_position_embeddings": 1024},
}
"""77,440, 320,640 and some 80,000 parameters."""


def make_tokenizer(kind: str, folder: Path) -> None:
    """One token a character."""
    # In the spelling of byte-level BPE, which transformers expects of a Qwen2: it makes the
    # tokenizer anew by the model's type.
    characters = CHARACTERS.get(kind, MOST_CHARACTERS).replace(" ", "Ġ").replace("\n", "Ċ")
    ids = {token: place for place, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        padding_side="left",
    )
    fast.chat_template = CHAT
    trl = find_spec("trl") if kind == "trl" else None
    if trl is not None and trl.origin is not None:  # a template that TRL knows
        template = Path(trl.origin).parent / "chat_templates" / "qwen2_5.jinja"
        fast.chat_template = template.read_text()
    fast.save_pretrained(folder)


def make_model(kind: str, folder: Path) -> None:
    torch.manual_seed(0)
    config = Qwen2Config(
        **MODELS[kind],
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<|im_start|>"),
        eos_token_id=SPECIAL.index("<|im_end|>"),
    )
    dtype = torch.bfloat16 if kind == "openrlhf" else torch.float32
    Qwen2ForCausalLM(config).to(dtype).save_pretrained(folder)


def make_prompts(kind: str, folder: Path) -> None:
    """64 sums to train on and, of verl, 8 to validate with, each of them once. TRL's job has its
    own."""
    least, most = (0, 10) if kind == "verl" else (10, 100)
    sums = [(a, b) for a in range(least, most) for b in range(least, most)]
    chosen = random.Random(0).sample(sums, 72)
    if kind == "openrlhf":
        rows = [
            {"input": f"{a}+{b}=", "label": str(a + b), "datasource": "sums"} for a, b in chosen
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows[:64])
        (folder / "prompts.jsonl").write_text(text)
    if kind == "verl":
        import pandas as pd

        for split, part in (("train", chosen[:64]), ("val", chosen[64:])):
            rows = [
                {
                    "data_source": "sums",
                    "prompt": [{"role": "user", "content": f"{a}+{b}=?"}],
                    "ability": "math",
                    "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                    "extra_info": {"split": split, "index": index},
                }
                for index, (a, b) in enumerate(part)
            ]
            pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")


def main() -> None:
    """Writes `model/` and prompts."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "model").mkdir(parents=True)
    make_tokenizer(kind, folder / "model")
    make_model(kind, folder / "model")
    make_prompts(kind, folder)


if __name__ == "__main__":
    main()
