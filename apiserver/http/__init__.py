"""Everything that knows ASGI or a connection."""
