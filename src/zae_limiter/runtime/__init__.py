"""What the machine gives: clocks, randomness and ids, and how to wait, async or sync."""
