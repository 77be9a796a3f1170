"""student."""
