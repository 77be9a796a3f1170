"""In: texts, and a converted embedding model. Out: an index in a folder, and the passages nearest to a question.

`indexing` makes and continues an index, `asking` opens and asks it; `flat` is the folder that the apps read as well.
May import convert and what it may import; `usearch` and `sqlite_vec`, the extra `search`, only where they are used.
"""
