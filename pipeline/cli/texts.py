"""Text of anybody's in a line for people: not longer than can be read, and nothing that steers a terminal."""

import re

_SHOWN_CHARACTERS = 300
"""Most characters of a user's text that are printed back."""
_LONGEST_ERROR = 2000
"""Most characters of an error's line; PocketBERT's own longest errors, with lists of choices, have some hundreds."""
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters except tab and line feed, and characters that change the direction of writing."""


def plain(text: str) -> str:
    r"""Return a text with the characters that steer a terminal written out, such as `\x1b`."""
    return _STEERING.sub(lambda found: found.group().encode("unicode_escape").decode("ascii"), text)


def shortened(text: str, *, most: int = _SHOWN_CHARACTERS) -> str:
    """Return a text, or its beginning and how long it is."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"


def error_line(message: str) -> str:
    """Return an error as one line; a very long one is cut in the middle, since its advice stands at the end."""
    line = " ".join(message.split())
    if len(line) <= _LONGEST_ERROR:
        return line
    return f"{shortened(line, most=_LONGEST_ERROR)} … {line[-_SHOWN_CHARACTERS:]}"
