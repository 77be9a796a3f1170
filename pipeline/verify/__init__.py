"""In: a converted file, its student and the reference outputs. Out: `parity.json` with every measure and the verdict.

`measure` runs the file on real text, `structure` and `weights` read it without running, and `gates` judges.
May import convert, student, formats, metrics, text and what they import.
"""
