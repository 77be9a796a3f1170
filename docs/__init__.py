"""The documents, and the three modules that keep them true: `keys`, `links` and `commands`."""
