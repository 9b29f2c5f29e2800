"""Numbers about outputs, features and weights: tensors in, numbers out."""
