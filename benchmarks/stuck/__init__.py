"""Hangs of real processes, each with a culprit that is known: who is named?"""
