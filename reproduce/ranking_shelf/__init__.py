"""Forty parts, ten targets and two truths: the shelf on which scores are judged."""
