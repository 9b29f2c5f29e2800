"""The colours of pages and drawings, light and dark, and the ramps of heat maps.

A ramp has ``STEPS`` classes rather than a continuous scale, so that the page's style sheet can
hold one set of colours for light and one for dark, and the drawing only names a step.
"""

from __future__ import annotations

PALETTES = {
    "light": {
        "paper": "#ffffff", "ink": "#1b1f24", "quiet": "#5c6670", "faint": "#e4e8ec",
        "accent": "#0b62a8", "c0": "#0b62a8", "c1": "#c85000", "c2": "#00805c", "c3": "#b0518a",
        "c4": "#b98100", "c5": "#3793cf", "c6": "#5c6670", "c7": "#7b4ab8",
    },
    "dark": {
        "paper": "#14181c", "ink": "#e4e8ec", "quiet": "#98a3ae", "faint": "#2b3238",
        "accent": "#6cb8f2", "c0": "#6cb8f2", "c1": "#ff8f52", "c2": "#3ecf9f", "c3": "#e795c6",
        "c4": "#e8bb4a", "c5": "#a4d8ff", "c6": "#a3adb7", "c7": "#bb9cf2",
    },
}  # fmt: skip
"""Paper, inks and the series' colours ``c0`` … ``c7`` of each theme."""

STEPS = 21
"""Odd, so that the two-sided ramp has a middle step for zero."""

# One-sided: from near the paper to one hue.  Two-sided: orange below zero, blue above; the pair
# stays apart in every common colour deficiency.
_ANCHORS = {
    ("light", "one"): ("#f1f6fb", "#9cc3e4", "#4a8fc7", "#1c5f9c", "#0b335c"),
    ("dark", "one"): ("#17222d", "#1f4468", "#2f73aa", "#68aee0", "#cfe8fb"),
    ("light", "two"): ("#8a3a06", "#d97a35", "#f4f3f1", "#4a8fc7", "#0b335c"),
    ("dark", "two"): ("#ffd2ae", "#c8702f", "#23262a", "#3b80b8", "#cfe8fb"),
}
# On every colour one of the two has a contrast of 4.5 or more; a softer black would not.
_DARK_INK, _LIGHT_INK = "#000000", "#ffffff"


def ramp(theme: str, sides: str) -> list[str]:
    """The colours of a ramp, least value first.

    >>> ramp("light", "one")[0], len(ramp("dark", "two"))
    ('#f1f6fb', 21)
    """
    anchors = [_channels(colour) for colour in _ANCHORS[theme, sides]]
    colours = []
    for step in range(STEPS):
        at = step / (STEPS - 1) * (len(anchors) - 1)
        below = min(int(at), len(anchors) - 2)
        pairs = zip(anchors[below], anchors[below + 1], strict=True)
        mixed = (a + (b - a) * (at - below) for a, b in pairs)
        colours.append("#" + "".join(f"{round(channel):02x}" for channel in mixed))
    return colours


def inks(theme: str, sides: str) -> list[str]:
    """For each colour of a ramp the ink, dark or light, that stands out more.

    >>> inks("light", "one")[0], inks("light", "one")[-1]
    ('#000000', '#ffffff')
    """
    return [
        max((_DARK_INK, _LIGHT_INK), key=lambda ink: contrast(ink, colour))
        for colour in ramp(theme, sides)
    ]


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours as WCAG 2 defines it, from 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return round((light + 0.05) / (dark + 0.05), 2)


def palette_rules(theme: str) -> str:
    """A theme's palette as variables for a style sheet, and the colour each series' class names.

    >>> palette_rules("dark").split(";")[0]
    ':root{--paper:#14181c'
    """
    named = "".join(f"--{name}:{colour};" for name, colour in PALETTES[theme].items())
    series = "".join(f".{c}{{--c:var(--{c})}}" for c in PALETTES[theme] if c[1:].isdigit())
    return f":root{{{named}}}\n{series}\n"


def heat_rules(theme: str) -> str:
    """The style rules of a theme's ramps: fill by ``.one-0`` …, ink by the text beside it.

    >>> ".one-20{" in heat_rules("light")
    True
    """
    return "".join(_rule(theme, sides, step) for sides in ("one", "two") for step in range(STEPS))


def by_theme(light: str, dark: str) -> str:
    """Rules for light surroundings, and others for dark ones.

    Paper is white whatever the screen is, so the dark ones are for screens only.

    >>> by_theme("a{}", "b{}").split()
    ['a{}@media', 'screen', 'and', '(prefers-color-scheme:', 'dark)', '{', 'b{}}']
    """
    return f"{light}@media screen and (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _rule(theme: str, sides: str, step: int) -> str:
    fill, ink = ramp(theme, sides)[step], inks(theme, sides)[step]
    return f".{sides}-{step}{{fill:{fill}}}.{sides}-{step}+text{{fill:{ink}}}\n"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    linear = []
    for channel in _channels(colour):
        share = channel / 255
        linear.append(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
