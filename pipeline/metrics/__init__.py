"""In: the outputs of a model and of its fp32 truth, and gold labels. Out: measures, decoded answers, task metrics.

May import errors, schemes and tasks. Pure NumPy, but for the field's own SQuAD and entity code, imported when needed.
"""
