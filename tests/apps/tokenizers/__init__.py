"""The conformance kit: tables of characters, and texts with the ids that the reference library gives them."""
