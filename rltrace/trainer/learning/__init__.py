"""The policy and how it learns: its model, decoding, and GRPO."""
