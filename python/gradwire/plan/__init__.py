"""`gradwire plan`: predicts a step from a profile, a network and a codec."""
