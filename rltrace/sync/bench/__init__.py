"""Ways to move weights on one host, side by side, against this machine's memory.

`measuring.measure` has each way publish to 1, 2, 4 … receivers, which are compared by digest after
each round, outside the time. A round's floor is (1 + N) copies at the rate of two threads of
memcpy, probed in that round: each byte is written once for all, and once into every receiver.
"""
