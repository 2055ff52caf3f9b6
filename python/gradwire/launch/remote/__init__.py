"""Processes on other machines: ssh, and what is sent along for machines without gradwire."""
