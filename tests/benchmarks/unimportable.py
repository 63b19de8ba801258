"""A package that is installed but does not import."""

raise OSError("a library is missing")
