"""Text from a run or from the system, made safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""``text`` with control characters and other unprintable characters escaped.

    >>> printable("red\x1b[31m\n")
    'red\\x1b[31m\\n'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
