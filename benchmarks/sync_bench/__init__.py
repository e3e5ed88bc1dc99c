"""Ways to move weights on one host, against this machine's memory.

Receivers are compared by digest after each round. A round's floor is (1 + N) copies at the rate of
two threads of memcpy: each byte is written once for all, and once into every receiver.
"""
