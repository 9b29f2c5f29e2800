"""The small task and network of the trainers' tests."""

from train.conftest import net, task

__all__ = ["net", "task"]
