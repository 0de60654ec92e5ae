"""The error a user can act on."""


class PaperError(Exception):
    """Bad input: says what was expected, what came, where, and the way out."""
