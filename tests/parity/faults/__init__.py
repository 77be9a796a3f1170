"""Planted faults: small honest bugs such as converters and people really make, each of which verify must catch.

`make faults` converts every fault with the pipeline's own machinery, judges the file with the default gates against
the clean student, and writes `benchmarks/FAULTS.md`; clean exports, judged alike, must all pass.
"""
