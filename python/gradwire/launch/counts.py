"""How many processes a job may have."""

MOST_PROCESSES = 65_536
"""Of workers, and of servers. What lists a job's processes would fill the memory with the counts of a typing error."""
