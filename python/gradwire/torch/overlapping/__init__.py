"""`overlap_step`: the next forward pass begins while sums are on their way, and each layer waits for its own."""
