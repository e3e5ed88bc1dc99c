"""Makes a tiny random Qwen2 and a tokenizer of characters in a given folder; no network."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from string import ascii_letters

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
VOCABULARY = [*SPECIAL, *"0123456789 +-*/=?.,:;!()[]{}<>_'\"\n", *ascii_letters]
SIZE = 112  # of the vocabulary, padded
PLAIN = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make_tokenizer(folder: Path) -> None:
    """One token a character, with a chat template that TRL knows where it is installed."""
    ids = {token: place for place, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(vocab=ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        padding_side="left",
        additional_special_tokens=["<|im_start|>"],
    )
    trl = find_spec("trl")
    fast.chat_template = PLAIN
    if trl is not None and trl.origin is not None:
        template = Path(trl.origin).parent / "chat_templates" / "qwen2_5.jinja"
        fast.chat_template = template.read_text()
    fast.save_pretrained(folder)


def make_model(folder: Path) -> None:
    """Some 90,000 parameters, in float32."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=VOCABULARY.index("<|im_end|>"),
        pad_token_id=VOCABULARY.index("<|endoftext|>"),
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def main() -> None:
    """Writes the folder."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    make_tokenizer(folder)
    make_model(folder)


if __name__ == "__main__":
    main()
