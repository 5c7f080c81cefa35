"""What the benchmarks share: an HTTP client that is not the bottleneck, load loops, statistics, CPU, tables."""
