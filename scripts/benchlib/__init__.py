"""What the benchmarks share: an HTTP client that is not the bottleneck, load loops, statistics, CPU, tables."""

import sys
from pathlib import Path

# The packages of the checkout that these scripts lie in are what is measured, installed or not.
sys.path.insert(1, str(Path(__file__).parents[2]))
