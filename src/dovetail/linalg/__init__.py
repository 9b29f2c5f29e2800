"""Linear algebra in closed form: tensors in, tensors out, float64."""

from dovetail.linalg.ridge import Decomposed, fit, leave_one_out, solve
from dovetail.linalg.ridge_sums import LeaveOneOut, Linear, RidgeSums

__all__ = ["LeaveOneOut", "Linear", "RidgeSums", "Decomposed", "fit", "leave_one_out", "solve"]
