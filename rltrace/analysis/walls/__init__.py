"""Walls: what holds a job back, each a test on its trace.

All have a *cost*, by which they are ranked, though costs do not add up: the share of the run's
goodput that the wall takes. Without a wall of cost c, useful tokens a second would be 1 / (1 - c)
times what they are. A wall of stages takes time: the part by which a step would be shorter if they
took none and all else were as it is. A statistical wall (freshness, sparse reward, observability)
takes the share of otherwise useful tokens that do not count, or that nobody can show to count.
"""
