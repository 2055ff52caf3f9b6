"""Clusters to which a job is submitted and which choose its machines: SGE, YARN and Kubernetes.

For each: NAME.py makes the processes of a job, and NAME_agent.py is what runs here for as long as they run there.
"""
