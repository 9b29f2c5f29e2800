"""Running parts on data: preprocess, evaluate, predict, features."""
