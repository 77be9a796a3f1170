"""In: a device's name. Out: its row in `devices.toml`, and for this machine the description that a record carries.

May import errors only.
"""
