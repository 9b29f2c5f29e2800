"""What the scripts about training layer by layer share."""
