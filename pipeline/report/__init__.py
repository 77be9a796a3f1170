"""In: the manifests and records in a recipe's folder. Out: `index.html`, `report.json` and `RESULTS.md`.

Every figure is computed from typed records; nothing is scraped from text or decoded from a file name.
May import verify, benchmark, quantize, convert and what they import; it runs no model.
"""
