"""Choose the random look of a person: skin, hair and clothes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from posenet.synthetic.canvas import Colour, hsv

Pattern = Literal["plain", "stripes", "band", "emblem", "jacket"]
Bottoms = Literal["trousers", "shorts", "skirt", "dress"]

_HAIRSTYLES = {
    "short": 3, "fringe": 3, "receding": 1, "bald": 1, "long": 3, "bun": 1, "ponytail": 1.5, "afro": 1, "beanie": 1,
    "cap": 1, "scarf": 0.7,
}  # fmt: skip
"""Relative frequency of every hairstyle or hat."""
_BEARD_STYLES = ("short", "receding", "bald", "cap")
"""The hairstyles that allow a beard."""
_BOTTOMS_SHARES = (0.55, 0.23, 0.12, 0.10)
"""Frequency of each of ``Bottoms``."""
_SLEEVES = (0, 0.5, 0.62, 2)
_SLEEVE_SHARES = (0.15, 0.25, 0.25, 0.35)
_SKIN_COLOURS: tuple[Colour, ...] = (
    (196, 219, 246), (170, 200, 238), (150, 184, 228), (125, 165, 214), (98, 140, 195), (72, 110, 168),
    (52, 82, 132), (40, 62, 102),
)  # fmt: skip
_HAIR_COLOURS: tuple[Colour, ...] = (
    (28, 24, 26), (36, 34, 44), (32, 48, 74), (40, 66, 104), (60, 104, 160), (96, 160, 214), (60, 90, 190),
    (150, 150, 155), (205, 208, 210), (150, 70, 130),
)  # fmt: skip


@dataclass(frozen=True)
class HeadLook:
    """The look of a head."""

    skin: Colour
    hair: Colour
    style: str  # hairstyle or hat
    cloth: Colour  # of a hat or a scarf
    glasses: bool
    beard: bool


@dataclass(frozen=True)
class Look:
    """The look of a whole person."""

    head: HeadLook
    shirt: Colour
    pattern: Pattern  # of the shirt
    accent: Colour  # of the pattern
    sleeve: float  # length of the sleeves: 0 none, 1 to the elbow, 2 to the wrist
    bottoms: Bottoms
    cloth: Colour  # of trousers or skirt
    shoes: Colour
    waist: float  # width of the waist, relative to a straight one


def random_look(rng: np.random.Generator) -> Look:
    """Choose a random look."""
    weights = np.array(list(_HAIRSTYLES.values()))
    style = str(rng.choice(list(_HAIRSTYLES), p=weights / weights.sum()))
    head = HeadLook(
        skin=_vary(rng, _SKIN_COLOURS),
        hair=_vary(rng, _HAIR_COLOURS),
        style=style,
        cloth=_cloth_colour(rng),
        glasses=rng.random() < 0.15,
        beard=rng.random() < 0.3 and style in _BEARD_STYLES,
    )
    shirt = _cloth_colour(rng)
    bottoms: Bottoms = get_args(Bottoms)[rng.choice(4, p=_BOTTOMS_SHARES)]
    cloth = _cloth_colour(rng)
    pattern: Pattern = get_args(Pattern)[rng.choice(5)]
    return Look(
        head=head,
        shirt=shirt,
        pattern=pattern,
        accent=_cloth_colour(rng),
        sleeve=float(rng.choice(_SLEEVES, p=_SLEEVE_SHARES)),
        bottoms=bottoms,
        cloth=shirt if bottoms == "dress" else cloth,
        shoes=_cloth_colour(rng),
        waist=rng.uniform(0.85, 1.08),
    )


def _vary(rng: np.random.Generator, palette: tuple[Colour, ...]) -> Colour:
    """A random colour of the palette, a little brighter or darker."""
    blue, green, red = palette[rng.integers(len(palette))]
    factor = rng.uniform(0.94, 1.04)
    return blue * factor, green * factor, red * factor


def _cloth_colour(rng: np.random.Generator) -> Colour:
    """A random colour of cloth; three in ten are almost black, grey or white."""
    if rng.random() < 0.3:
        return hsv(rng.random(), rng.uniform(0, 0.12), rng.choice((0.22, 0.35, 0.6, 0.92)))
    return hsv(rng.random(), rng.uniform(0.35, 0.85), rng.uniform(0.35, 0.95))
