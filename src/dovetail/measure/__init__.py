"""Run a part and measure it: predictions, features, accuracy, calibration, fronts with heads."""
