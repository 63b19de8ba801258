"""Text that came from elsewhere, made safe to print: names in checkpoints and artifacts may hold anything."""


def printable(text: str) -> str:
    """The text on one line: what is not printable, a line break or the escape of a terminal code, as an escape.

    Args:
        text: such as the name of a tensor.
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
