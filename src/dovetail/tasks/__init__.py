"""Named data: what a task is, where it comes from, what can be made of it, and how it is fed.

``task`` holds the :class:`~dovetail.tasks.task.Task`; ``load`` finds one by name or path;
``array_files``, ``image_folder``, ``tables`` and ``pairs`` read what people have; ``known``,
``catalogue`` and ``fetch`` name, describe and get the data sets known by name; ``derive`` makes
tasks of tasks; ``augment`` and ``batches`` feed training.
"""
