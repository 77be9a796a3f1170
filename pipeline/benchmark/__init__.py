"""In: converted files and a device. Out: one record of latency, memory and size for each file and thread count.

Variants take turns in processes of their own, so that a drifting machine hurts all of them alike.
May import convert, student, devices, text and what they import; it runs on a quiet machine.
"""
