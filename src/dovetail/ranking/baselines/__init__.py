"""Scores that are not functions of sums, a file each: what a ranking is compared with."""
