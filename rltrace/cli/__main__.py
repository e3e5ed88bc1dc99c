"""`python -m rltrace.cli`."""

from rltrace.cli import main

if __name__ == "__main__":
    main()
