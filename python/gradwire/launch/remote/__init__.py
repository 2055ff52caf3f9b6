"""Processes on other machines: ssh, and modules that are sent to machines without gradwire."""
