"""What the scripts about platonic projections share: toy problems and the source's own recipe."""
