"""Makes a tiny random Qwen2, a tokenizer of characters and prompts `a+b=` in a given folder."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from string import ascii_letters

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ("<pad>", "<eos>", "<unk>")
VOCABULARY = [*SPECIAL, *"0123456789 +-*/=?.,:;!()[]<>\n", *ascii_letters]
SIZE = 96  # of the vocabulary, padded


def make_tokenizer(folder: Path) -> None:
    """One token a character."""
    ids = {token: place for place, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocab=ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)


def make_model(folder: Path) -> None:
    """320,640 parameters in 27 tensors."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,  # of 32: vLLM's attention on a CPU takes no smaller head
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        pad_token_id=VOCABULARY.index("<pad>"),
        eos_token_id=VOCABULARY.index("<eos>"),
        bos_token_id=None,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def make_prompts(folder: Path) -> None:
    """64 sums, each of them once."""
    sums = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    chosen = random.Random(0).sample(sums, 64)
    rows = [{"input": f"{a}+{b}=", "label": str(a + b), "datasource": "sums"} for a, b in chosen]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    """Writes `model/` and `prompts.jsonl`."""
    folder = Path(sys.argv[1])
    (folder / "model").mkdir(parents=True)
    make_tokenizer(folder / "model")
    make_model(folder / "model")
    make_prompts(folder)


if __name__ == "__main__":
    main()
