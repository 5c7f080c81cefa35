"""A pool of forked API servers in front of one LLM or embedding engine."""

__version__ = "0.1.0"
