"""Samples from generation to their use: lag, tail, rewards."""
