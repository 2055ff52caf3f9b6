"""Which codec a parameter has, what it sees of the gradient, and what it costs with Adam."""
