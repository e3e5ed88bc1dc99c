"""`python -m rltrace`: the command line, for where its script is not on the path."""

from rltrace.entry import main

main()
