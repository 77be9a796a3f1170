"""Damaged files: what becomes of them where they are loaded, and whether verify tells them from clean ones.

`make mutations` damages converted files of a tiny student at seeded places, loads each in a process of its own, then
flips single bits and judges each file, and writes `benchmarks/MUTATIONS.md`.
"""
