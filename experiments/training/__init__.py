"""What the training scripts of experiments/ share: flags, the loop, the order of examples, the record."""
