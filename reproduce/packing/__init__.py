"""What the scripts about packed weights share: workers simulated in one process."""
