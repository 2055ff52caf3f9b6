"""`gradwire run`: starts a job's processes on any launcher, watches them, leaves none behind."""
