"""How many files, and so connections, a process may have open."""

import logging
import resource

_ENOUGH = 65_536
_FEW = 1_024

log = logging.getLogger("apiserver")


def raise_file_limit() -> None:
    """As far as this process may, for itself and all that it starts: the soft limit of most systems is for programs
    of the past. One line if it stays low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < _FEW:
        log.warning("at most %d open files: more connections an API server will wait; raise `ulimit -n`", most)
