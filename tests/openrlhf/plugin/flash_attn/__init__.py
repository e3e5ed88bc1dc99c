"""What `openrlhf.models.ring_attn_utils` imports of flash-attn, in plain torch.

It is called only with packed samples and ring attention, which no job here has.
"""
