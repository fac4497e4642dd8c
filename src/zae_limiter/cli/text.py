"""Text for a terminal as it is, with nothing drawn around it: all that an error needs."""


def printable(text: str) -> str:
    """Text in which nothing but a new line steers a terminal.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
