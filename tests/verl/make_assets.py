"""Makes a tiny random Qwen2, a tokenizer of characters and prompts `a+b=?` in a given folder."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pandas as pd
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = (
    "<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<role:system>", "<role:user>",
    "<role:assistant>",
)  # fmt: skip
# In the spelling of byte-level BPE (Ġ is a space, Ċ a new line), which transformers expects of a
# Qwen2: it makes the tokenizer anew by the model's type.
VOCABULARY = [*SPECIAL, *"0123456789+-=?ĠĊabcdefghijklmnopqrstuvwxyz"]
CHAT = (
    "{% for m in messages %}<|im_start|><role:{{ m['role'] }}>{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|><role:assistant>{% endif %}"
)


def make_tokenizer(folder: Path) -> None:
    """One token a character."""
    ids = {token: place for place, token in enumerate(VOCABULARY)}
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
    )
    fast.chat_template = CHAT
    fast.save_pretrained(folder)


def make_model(folder: Path) -> None:
    """77,440 parameters; the head is tied to the embedding."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=VOCABULARY.index("<pad>"),
        bos_token_id=VOCABULARY.index("<|im_start|>"),
        eos_token_id=VOCABULARY.index("<|im_end|>"),
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def make_prompts(folder: Path) -> None:
    """64 sums to train on and 8 to validate with, each of them once."""
    sums = [(a, b) for a in range(10) for b in range(10)]
    random.Random(0).shuffle(sums)
    for split, chosen in (("train", sums[:64]), ("val", sums[64:72])):
        rows = [
            {
                "data_source": "sums",
                "prompt": [{"role": "user", "content": f"{a}+{b}=?"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": split, "index": index},
            }
            for index, (a, b) in enumerate(chosen)
        ]
        pd.DataFrame(rows).to_parquet(folder / f"{split}.parquet")


def main() -> None:
    """Writes `model/`, `train.parquet` and `val.parquet`."""
    folder = Path(sys.argv[1])
    (folder / "model").mkdir(parents=True)
    make_tokenizer(folder / "model")
    make_model(folder / "model")
    make_prompts(folder)


if __name__ == "__main__":
    main()
