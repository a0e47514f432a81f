"""What people look like: skin, hair and clothes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from posenet.synthetic.canvas import Colour, hsv

_HAIRSTYLES = {
    "short": 3,
    "fringe": 3,
    "receding": 1,
    "bald": 1,
    "long": 3,
    "bun": 1,
    "ponytail": 1.5,
    "afro": 1,
    "beanie": 1,
    "cap": 1,
    "scarf": 0.7,
}
_BEARDED = ("short", "receding", "bald", "cap")
_SKINS = (
    (196, 219, 246),
    (170, 200, 238),
    (150, 184, 228),
    (125, 165, 214),
    (98, 140, 195),
    (72, 110, 168),
    (52, 82, 132),
    (40, 62, 102),
)
_HAIRS = (
    (28, 24, 26),
    (36, 34, 44),
    (32, 48, 74),
    (40, 66, 104),
    (60, 104, 160),
    (96, 160, 214),
    (60, 90, 190),
    (150, 150, 155),
    (205, 208, 210),
    (150, 70, 130),
)


@dataclass(frozen=True)
class HeadLook:
    """Colours and habits of a head."""

    skin: Colour
    hair: Colour
    style: str
    """Of the hair, or what covers it."""
    cloth: Colour
    """Of a hat or a scarf."""
    glasses: bool
    beard: bool


@dataclass(frozen=True)
class Look:
    """What a whole person wears."""

    head: HeadLook
    shirt: Colour
    pattern: Literal["plain", "stripes", "band", "emblem", "jacket"]
    accent: Colour
    """Of the pattern."""
    sleeve: float
    """How far the sleeves reach: 0 none, 1 to the elbow, 2 to the wrist."""
    bottoms: Literal["trousers", "shorts", "skirt", "dress"]
    cloth: Colour
    """Of trousers or skirt."""
    shoes: Colour
    waist: float
    """Width of the waist, relative to a straight one."""


def draw_look(rng: np.random.Generator) -> Look:
    """Random clothes, skin and hair."""
    weights = np.array(list(_HAIRSTYLES.values()))
    style = str(rng.choice(list(_HAIRSTYLES), p=weights / weights.sum()))
    head = HeadLook(
        skin=_vary(rng, _SKINS),
        hair=_vary(rng, _HAIRS),
        style=style,
        cloth=_garment(rng),
        glasses=rng.random() < 0.15,
        beard=rng.random() < 0.3 and style in _BEARDED,
    )
    shirt = _garment(rng)
    bottoms = str(rng.choice(("trousers", "shorts", "skirt", "dress"), p=(0.55, 0.23, 0.12, 0.10)))
    cloth = _garment(rng)
    return Look(
        head,
        shirt,
        str(rng.choice(("plain", "stripes", "band", "emblem", "jacket"))),
        _garment(rng),
        sleeve=float(rng.choice((0, 0.5, 0.62, 2), p=(0.15, 0.25, 0.25, 0.35))),
        bottoms=bottoms,
        cloth=shirt if bottoms == "dress" else cloth,
        shoes=_garment(rng),
        waist=rng.uniform(0.85, 1.08),
    )


def _vary(rng: np.random.Generator, palette: tuple[Colour, ...]) -> Colour:
    """One colour of the palette, a little brighter or darker."""
    colour, factor = palette[rng.integers(len(palette))], rng.uniform(0.94, 1.04)
    return tuple(channel * factor for channel in colour)


def _garment(rng: np.random.Generator) -> Colour:
    """A colour for cloth: sometimes near black, grey or white."""
    if rng.random() < 0.3:
        return hsv(rng.random(), rng.uniform(0, 0.12), rng.choice((0.22, 0.35, 0.6, 0.92)))
    return hsv(rng.random(), rng.uniform(0.35, 0.85), rng.uniform(0.35, 0.95))
