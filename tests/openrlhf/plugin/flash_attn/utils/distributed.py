from flash_attn import called as all_gather

__all__ = ["all_gather"]
