"""In: verified models. Out: their files in the demo apps, or a bundle with a model card for the Hugging Face Hub.

Models with verdict `passed` go out; `not_run` only when a flag says so, which the shipped manifest repeats.
May import report, verify, convert and what they import.
"""
