"""Meters on a run that is being followed: what a monitoring system reads again and again.

What they count only grows, and comes to the same whenever one began to follow, since a trace is
read from its beginning.
"""
