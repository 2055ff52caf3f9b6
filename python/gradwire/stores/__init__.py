"""What the stores of gradwire.kv are made of."""
