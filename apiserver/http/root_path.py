"""--root-path in a request's path."""


def once(prefix: str, path: str) -> str:
    """The path with the prefix before it once. uvicorn puts it before every path, for proxies that have stripped it.
    Where it is still there, by a proxy that does not strip or without any, the routes are the same."""
    return path[len(prefix) :] if path.startswith(f"{prefix}{prefix}/") else path
