"""Workers that train apart and meet every so many steps."""
