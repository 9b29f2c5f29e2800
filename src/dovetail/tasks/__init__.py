"""Named data: what a task is, where it comes from, what can be made of it, and how it is fed.

``task`` holds the :class:`~dovetail.tasks.task.Task`; ``builtin`` finds one by name or path,
``readers`` reads files, ``derive`` makes tasks of tasks, ``augment`` and ``batches`` feed training.
"""
