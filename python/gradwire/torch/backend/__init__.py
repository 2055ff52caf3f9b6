"""The backend "gradwire" of torch.distributed: exact collectives, and gradient sums by the policy of a group."""
