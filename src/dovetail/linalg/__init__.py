"""Linear algebra in closed form: tensors in, tensors out, float64."""

from dovetail.linalg.ridge import LeaveOneOut, Linear, Solved, fit, leave_one_out, solve
from dovetail.linalg.ridge_sums import RidgeSums

__all__ = ["LeaveOneOut", "Linear", "RidgeSums", "Solved", "fit", "leave_one_out", "solve"]
