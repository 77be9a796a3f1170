"""Side-by-side measurements: what a user would pick instead, in the same run as what we write."""
