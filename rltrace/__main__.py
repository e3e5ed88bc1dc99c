"""`python -m rltrace`: the command line where its script is not found."""

from rltrace.entry import program

program()
