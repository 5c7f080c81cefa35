"""Why the pool cannot start."""


class LaunchError(Exception):
    """The pool cannot start; the message is one line for the person at the terminal."""
