"""The commands beside `serve`, one a file."""
