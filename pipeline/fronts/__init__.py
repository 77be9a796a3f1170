"""What studies found: their records, the front of each with its page, the answer, and what is recommended from them.

Nothing here tries a student; that is `pipeline.study`. Reports show fronts too.
"""
