"""Campaigns against the command: kills, full disks, bad inputs, hostile folders, pairs. `make abuse` runs them all.

In: a seed and a time limit. Out: `build/abuse/*.jsonl`, kept as they come, and `benchmarks/ABUSE.md`.
"""
