"""In: embeddings of texts. Out: the contract of their space, and the forms in which an index stores them.

May import metrics and what lies below them.
"""
