"""In: texts, and the tokenizer files of a checkpoint. Out: a fast tokenizer, encoded rows, the package's own texts.

May import errors and artifact only.
"""
