"""In: a folder. Out: whether this user's store made it, or who signed it, and that it is as it was then.

May import artifact, strict and errors.
"""
