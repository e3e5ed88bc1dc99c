"""Ways to move weights on one host, side by side, against what this machine's memory can do.

`measuring.measure` has each way (`ways.Way`) publish to 1, 2, 4 … receivers with tensors of their
own, which are compared by digest after each round, outside the time. A round's floor is (1 + N)
copies of the weights at the rate of two threads of memcpy, probed in that round: each byte has to
be written once where others can read it, and once into every receiver.
"""
