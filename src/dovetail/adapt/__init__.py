"""Fit a part to few labels by inference: weights untouched, a posterior added."""
