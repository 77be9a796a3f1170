"""In: a recipe's verified files. Out: a page that runs them in the reader's browser, served by this process alone.

`offer` chooses the files, `assets` has the browser's runtime as the npm registry gives it, `server` hands out a fixed
table of files, and `static/` is the page. May import formats, convert, verify and what they import; it runs no model.
"""
