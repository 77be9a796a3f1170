"""In: converted LiteRT files and older runtimes. Out: on which of them each file still computes the same.

`environments` makes the virtual environments, `runner` is the script that runs in them, `trials` its caller, and
`stage` judges. May import verify, convert, runtimes and what they import.
"""
