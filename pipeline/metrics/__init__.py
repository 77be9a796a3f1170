"""In: the outputs of a model and of its fp32 reference, and gold labels. Out: measures, decoded answers, task metrics.

May import errors, schemes and tasks. Pure NumPy, but for the field's own SQuAD and entity code, imported when needed.
"""
