"""The library's errors: each says what was expected, what came, where, and the way out."""


class PathCondError(ValueError):
    """Base class of every error the library raises on bad input."""


class PathCondWarning(UserWarning):
    """A call did less than its user may expect."""


class RecordError(PathCondError):
    """The model's forward pass could not be recorded on fake tensors."""


class UnsupportedOpError(PathCondError):
    """With ``strict=True``: a scale would have to cross an operation without a rule."""


class SolveError(PathCondError):
    """The solver met a value that is not finite."""


class ApplyError(PathCondError):
    """The scales do not fit the model or its number format; nothing was written."""
