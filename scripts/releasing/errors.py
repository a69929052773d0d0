class ReleaseError(Exception):
    """A package cannot be made, or is not what it has to be."""


class Unavailable(ReleaseError):
    """This machine lacks what a package is made with."""
