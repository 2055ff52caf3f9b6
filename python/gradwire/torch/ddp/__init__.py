"""The communication hook for DistributedDataParallel: its buckets travel through a store."""
