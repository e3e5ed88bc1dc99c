"""`python -m rltrace`: the command line, for where its script is not on the path."""

from rltrace.cli import main

main(prog_name="rltrace")
