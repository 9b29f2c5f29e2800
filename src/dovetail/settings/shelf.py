"""What looking after a shelf lets people choose."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting


class Find(Settings):
    """Only parts that are all that is asked for."""

    fits: str | None = setting(None, "can follow or precede this one", metavar="REF")
    space: str | None = setting(None, "take or give this space")
    classes: tuple[str, ...] | None = setting(None, "know all these classes", metavar="A,B")
    task: str | None = setting(None, "were made on this task")
    tag: str | None = setting(None, "bear this tag")
    takes: tuple[int | None, ...] | None = setting(
        None, "take this shape ('?': any)", metavar="16x2x2"
    )
    gives: tuple[int | None, ...] | None = setting(None, "give this shape", metavar="16x?x?")


class Named(Settings):
    """What is put on the shelf has a name there."""

    name: str | None = setting(None, "name on the shelf (default: the folder's or repository's)")
    tags: tuple[str, ...] = setting(
        (), "may be repeated", metavar="TAG", many="append", flag="--tag"
    )


class Add(Named):
    """Put a part on the shelf; all but name and tags is for networks by their builder's name."""

    weights: str | None = setting(
        None, "its trained weights, a .safetensors or .pth file", metavar="FILE"
    )
    features: bool = setting(False, "without its classifier")
    classes: tuple[str, ...] | None = setting(None, "names of its outputs", metavar="A,B")
    size: int | None = setting(None, "of the images it will take", metavar="PIXELS", least=1)


class Remove(Settings):
    """Take a part off the shelf."""

    all_versions: bool = setting(False, "every version", flag="--all")


class Verify(Settings):
    """Read every part again."""

    sweep: bool = setting(False, "delete day-old unfinished work of writers that died")


class Push(Settings):
    """Send a part to a hub's repository."""

    public: bool = setting(False, "of a new repository: all may see it")


class Pull(Named):
    """Fetch a part from a hub's repository."""

    revision: str | None = setting(None, "branch, tag or commit (default: main)")


ACTIONS = {
    "ls": Find,
    "find": Find,
    "add": Add,
    "rm": Remove,
    "verify": Verify,
    "push": Push,
    "pull": Pull,
}
"""What each action of ``dovetail shelf`` lets people choose; the others let them choose nothing."""
