"""Older runtimes: does a converted file still compute the same on the runtime that somebody has in an app already?

`runtimes.py` is the table, `floors.py` what is known before anything runs, `environments.py` the virtual environments,
`runner.py` the script that runs inside them, `trials.py` its caller, `judging.py` the verdicts, `check.py` the stage.
"""
