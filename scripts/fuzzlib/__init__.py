"""The parts of scripts/fuzz: inputs by their seed, a pool to send them to, and what must be true afterwards."""
