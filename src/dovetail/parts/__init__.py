"""Parts: contract, recipe, one part's folder, cutting and joining."""
