"""In: a student artifact and a target, a format and a scheme. Out: the file, its signature, tokenizer and golden rows.

`stage` makes the artifact, `signature.json` is read back from the file, and `model` runs it from Python.
May import formats, student, checkpoint, data, text and what they import.
"""
