"""The wire between API servers and the engine core, and both its ends. Knows nothing of HTTP."""
