"""A scale model of a cluster: the mission's tables again, with real traffic between namespaces and compute slept."""
