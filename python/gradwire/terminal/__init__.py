"""What the commands share: progress, tables, --json, doctor."""
