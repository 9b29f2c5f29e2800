"""What the experiments on released networks share."""
