"""In: names and files as a recipe gives them. Out: labelled rows, texts without labels, and padded calibration batches.

May import errors, artifact, schemes, tasks and text.
"""
