"""ship."""
