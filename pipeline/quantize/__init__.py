"""Quantisation on calibration text: ranges, SmoothQuant scales, GPTQ, palettes and quantisation-aware training.

A converter rounds a checkpoint without calibration. Here the inputs and outputs of linears are measured on real text
first, and the student is rewritten so that fewer bits do. The result is a checkpoint that `pipeline.formats` converts.
"""
