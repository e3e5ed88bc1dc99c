"""The eight walls: what can hold a job back, each a test on its trace.

Their one currency is *cost*: the share of the run's goodput that the wall takes. Goodput is useful
tokens for each second; without a wall of cost c it would be 1 / (1 - c) times what it is.

- A wall of stages (decode, env/reward, learner, weights, tail) takes time: its cost is the part of
  the step by which the step would be shorter if these stages took none and the others were as they
  are (`cost`). Where chains of stages run beside each other that is no more than the time by which
  the chain is the longer one, and where queues lie between them no more than by which the slowest
  of the others is faster (`paced`).
- A statistical wall (freshness, sparse reward, observability) takes tokens: its cost is the share
  of otherwise useful tokens that do not count, or that nobody can show to count.

So the walls can be ranked, although their costs do not add up.
"""
