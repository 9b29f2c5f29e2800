"""What every row stands on: errors, records and their views, files, seeds, progress, devices."""
