"""`python -m rltrace.cli`."""

from rltrace.entry import main

if __name__ == "__main__":
    main()
