"""What Ray starts as a worker where tests have it fork: see `forked_workers`."""

import os
import sys

if __name__ == "__main__":
    sys.path[0] = os.path.dirname(os.path.dirname(sys.path[0]))
    from tests.trainer.forked_workers import ADDRESS, ask

    ask(os.environ[ADDRESS])
