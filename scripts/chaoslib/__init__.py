"""Pools under load while they are killed, stopped, stalled and cut off: asked, done and what comes of it."""

import sys
from pathlib import Path

# The packages of the checkout that these scripts lie in are what is tried, installed or not.
sys.path.insert(1, str(Path(__file__).parents[2]))
