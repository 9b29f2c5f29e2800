"""What the scripts about linearised networks share: their data, networks and kept runs."""
