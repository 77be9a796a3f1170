"""In: a graph of nodes. Out: artifacts in the store, made by workers of this machine or of a cluster.

Knows no stage. May import devices (what this machine has), artifact and errors.
"""
