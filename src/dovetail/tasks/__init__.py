"""Named data: what a task is, where it comes from, what can be made of it, and how it is fed.

``task`` holds the :class:`~dovetail.tasks.task.Task`; ``builtin`` finds one by name or path;
``readers`` (idx, npz), ``image_folder``, ``tables``, ``datasets`` and ``pair_files`` read what
people have; ``catalogue`` and ``fetch`` get the data sets known by name; ``derive`` makes tasks of
tasks; ``augment`` and ``batches`` feed training.
"""
