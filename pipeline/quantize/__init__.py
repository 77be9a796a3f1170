"""Quantisation that looks at what flows through a student: calibration, ranges, equalisation.

A converter rounds what it is given. What a linear reads and gives is measured here on real text first, and the student
is rewritten, exactly, so that fewer bits do. The result is a checkpoint like any other; `pipeline.formats` convert it.
"""
