"""Why nothing could be measured."""


class BenchError(Exception):
    """Its message is one line for the person at the terminal."""


class PoolError(BenchError):
    """Our pool could not be started or stopped as it should; the message has its last words."""


class OfflineError(BenchError):
    """There is no such engine in this process, or it failed at a request."""


class CannotFetch(BenchError):
    """A package could not be had, or is not the one that it should be."""


class CannotPlot(BenchError):
    """There is no matplotlib; the message says how to get it."""
