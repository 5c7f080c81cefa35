"""The dialects: one file a client-facing API. Bytes → job and events → bytes; no I/O, no await, no other dialect."""
