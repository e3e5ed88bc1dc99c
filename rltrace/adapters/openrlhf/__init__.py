"""OpenRLHF: an adapter in the making."""
