"""What the scripts on compatibility share: tasks, networks, one protocol, results kept on disk."""
