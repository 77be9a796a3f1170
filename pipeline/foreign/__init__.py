"""In: a model file that any tool made, and the checkpoint that it is said to be. Out: a verdict, and the error by name.

The file runs in one worker process, PyTorch in another; here their outputs are compared. May import planning and below.
"""
