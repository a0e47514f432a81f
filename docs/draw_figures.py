"""Draw overview.svg, how an image becomes people, and training.svg, how an annotated image becomes a loss.

The maps are rendered from two people; candidates, limbs and people are what the decoder finds in them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from posenet import TargetRenderer, decode
from posenet.inference.decoder.candidates import find_keypoints, find_limbs
from posenet.settings import TargetsConfig
from posenet.skeleton import COCO

SIZE = 192
"""Side of the image and of a panel in pixels."""
GAP = 48
"""Between two panels, for an arrow."""
TOP = 34
"""Height of the title of a panel."""
COLOURS = ("#1f6fd0", "#e07a10")
"""Of the two people."""
GREY, FAINT, INK = "#c9ced6", "#eef1f5", "#1d2530"
BODIES = ("#8a94a3", "#5f6a7b")
TURN_DEGREES = -20.0
"""Of the sample in training.svg, which is mirrored, too."""
UPRIGHT = {
    "nose": (0, -78),
    "left_eye": (5, -82),
    "right_eye": (-5, -82),
    "left_ear": (11, -79),
    "right_ear": (-11, -79),
    "left_shoulder": (19, -56),
    "right_shoulder": (-19, -56),
    "left_elbow": (34, -34),
    "right_elbow": (-33, -36),
    "left_wrist": (44, -60),
    "right_wrist": (-40, -12),
    "left_hip": (12, -4),
    "right_hip": (-12, -4),
    "left_knee": (17, 30),
    "right_knee": (-16, 31),
    "left_ankle": (19, 62),
    "right_ankle": (-22, 63),
}
"""Pixels from the middle of a person who waves."""
THICKNESS = (
    ("shoulder", "elbow", 11), ("elbow", "wrist", 10), ("hip", "knee", 13), ("knee", "ankle", 11),
    ("shoulder", "hip", 16),
)  # fmt: skip
"""Parts of one side of a body, and their widths in pixels."""


class Panel(NamedTuple):
    """One square of a figure."""

    title: str
    caption: list[str]
    """Lines below the panel."""
    shapes: list[str]
    """SVG elements, in pixels of the panel."""


def make_people() -> np.ndarray:
    """(2, 18, 3) joints of two people side by side, whose arms cross."""
    points = np.array([UPRIGHT.get(name, (0, -56)) for name in COCO.keypoints], np.float32)
    smaller = points[COCO.flip_keypoints] * (-0.85, 0.85)
    people = np.stack([points + (62, 112), smaller + (128, 118)])
    return np.concatenate([people, np.full((2, len(points), 1), 2, np.float32)], axis=2)


def line(a: np.ndarray, b: np.ndarray, colour: str, width: float, opacity: float = 1.0) -> str:
    """A line with round ends between two points."""
    return (
        f'<path d="M{a[0]:.1f} {a[1]:.1f}L{b[0]:.1f} {b[1]:.1f}" stroke="{colour}" stroke-width="{width:g}" '
        f'opacity="{opacity:.2f}" stroke-linecap="round"/>'
    )


def dot(xy: np.ndarray, colour: str, radius: float) -> str:
    """A filled circle."""
    return f'<circle cx="{xy[0]:.1f}" cy="{xy[1]:.1f}" r="{radius:g}" fill="{colour}"/>'


def draw_bodies(people: np.ndarray) -> list[str]:
    """The people as grey figures."""
    shapes = []
    for person, colour in zip(people, BODIES):
        joint = dict(zip(COCO.keypoints, person))
        for side in ("left", "right"):
            for a, b, width in THICKNESS:
                shapes.append(line(joint[f"{side}_{a}"], joint[f"{side}_{b}"], colour, width))
        shapes.append(line(joint["neck"], (joint["left_hip"] + joint["right_hip"]) / 2, colour, 26))
        shapes.append(dot(joint["nose"], colour, 15))
    return shapes


def draw_network() -> list[str]:
    """Four hourglasses in a row, with the five scales of the maps."""
    shapes = []
    width = SIZE / 4
    for stack in range(4):
        left, right, middle, centre = stack * width + 5, (stack + 1) * width - 5, (stack + 0.5) * width, SIZE / 2
        shapes.append(
            f'<path d="M{left:g} {centre - 52:g}L{middle:g} {centre - 10:g}L{right:g} {centre - 52:g}V{centre + 52:g}'
            f'L{middle:g} {centre + 10:g}L{left:g} {centre + 52:g}Z" fill="#7d8fb3"/>'
        )
        for scale in range(5):
            half = 52 - 10.5 * scale
            x = right - (right - middle) * scale / 4
            shapes.append(line(np.array([x, centre - half]), np.array([x, centre + half]), "#ffffff", 1.4))
    return shapes


def draw_maps(maps: np.ndarray) -> list[str]:
    """The largest response of all keypoint maps in red and of all body-part maps in green, one square for each cell."""
    keypoints = maps[COCO.keypoint_channels].max(axis=0)
    parts = maps[COCO.part_channels].max(axis=0)
    cell = SIZE / maps.shape[1]
    shapes = []
    for colour, values in (("#18a05a", parts), ("#d8263c", keypoints)):
        for level in range(2, 11):
            cells = np.argwhere((10 * values).round().clip(max=10) == level)
            squares = "".join(f"M{x * cell:g} {y * cell:g}h{cell:g}v{cell:g}h-{cell:g}z" for y, x in cells)
            shapes.append(f'<path d="{squares}" fill="{colour}" opacity="{level / 10}"/>')
    return shapes


def draw_candidates(maps: np.ndarray) -> list[str]:
    """All candidates, and all limbs: wider with a higher limb score, red with a low one."""
    candidates = find_keypoints(maps[COCO.keypoint_channels], 0.1)
    limbs = find_limbs(maps[COCO.part_channels], candidates, 0.1, COCO)
    points = candidates.xy * 4 + 1.5
    shapes = []
    for ends, score in sorted(zip(limbs.ends.tolist(), limbs.score.tolist()), key=lambda limb: limb[1]):
        colour = "#d8263c" if score < 0.35 else "#3d6fb5"
        shapes.append(line(points[ends[0]], points[ends[1]], colour, 1 + 2 * score, 0.35 + 0.5 * min(score, 1)))
    return shapes + [dot(point, INK, 2.4) for point in points]


def draw_people(maps: np.ndarray) -> list[str]:
    """The people that the decoder finds."""
    shapes = []
    for person, colour in zip(decode(maps), COLOURS):
        found = person.keypoints
        for a, b in ((COCO.index(a), COCO.index(b)) for a, b in COCO.drawn or COCO.parts):
            if found[a, 2] and found[b, 2]:
                shapes.append(line(found[a], found[b], colour, 4))
        shapes += [dot(point, colour, 3.6) for point in found if point[2]]
    return shapes


def draw_joints(people: np.ndarray) -> list[str]:
    """The annotated joints of the people."""
    return [dot(joint, colour, 3.2) for person, colour in zip(people, COLOURS) for joint in person]


def draw_losses() -> list[str]:
    """The network, with one loss for each scale of each hourglass."""
    shapes = draw_network()
    for stack in range(4):
        for scale in range(5):
            shapes.append(dot(np.array([(stack + 0.5) * SIZE / 4 + 4 * (4 - scale), 168 - 6 * scale]), "#d8263c", 2.2))
    return shapes


def mirror_and_turn(people: np.ndarray) -> np.ndarray:
    """The joints in a training sample: mirrored, with left and right exchanged, and turned about the middle."""
    mirrored = people[:, COCO.flip_keypoints] * (-1, 1, 1) + (SIZE, 0, 0)
    angle = math.radians(TURN_DEGREES)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    mirrored[..., :2] = (mirrored[..., :2] - SIZE / 2) @ rotation.T + SIZE / 2
    return mirrored


def render_maps(people: np.ndarray) -> np.ndarray:
    """(C, SIZE / 4, SIZE / 4) target maps of the joints."""
    renderer = TargetRenderer(TargetsConfig(keypoint_sigma=4.0, part_sigma=2.5), COCO)
    mask = torch.zeros(1, SIZE // 4, SIZE // 4)
    return renderer(torch.from_numpy(people.astype(np.float32))[None], mask)[0].numpy()


def make_overview() -> str:
    """From an image to people, as SVG."""
    people = make_people()
    maps = render_maps(people)
    return make_figure(
        [
            Panel("Image", ["several people,", "seen as a whole"], draw_bodies(people)),
            Panel("Network", ["4 hourglasses, each refines", "the maps of the one before"], draw_network()),
            Panel("50 maps", ["18 keypoints (red), 30 body", "parts (green), 2 masks"], draw_maps(maps)),
            Panel(
                "Candidates and limbs",
                ["peaks of the maps, and limbs", "between them (weak ones red)"],
                draw_candidates(maps),
            ),
            Panel("People", ["the strongest links join", "candidates into people"], draw_people(maps)),
        ]
    )


def make_training() -> str:
    """From an annotated image to the loss, as SVG."""
    people = make_people()
    sample = mirror_and_turn(people)
    return make_figure(
        [
            Panel(
                "Annotated image",
                ["an image and its joints,", "from the store"],
                draw_bodies(people) + draw_joints(people),
            ),
            Panel(
                "Sample",
                ["both warped together,", "here mirrored and turned"],
                draw_bodies(sample) + draw_joints(sample),
            ),
            Panel("Target maps", ["rendered from the joints,", "on the device"], draw_maps(render_maps(sample))),
            Panel("Loss", ["20 losses (red): 5 scales of", "each of the 4 hourglasses"], draw_losses()),
        ]
    )


def make_figure(panels: list[Panel]) -> str:
    """Panels in a row, with an arrow between two."""
    width = len(panels) * (SIZE + GAP) - GAP + 24
    height = SIZE + TOP + 66
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        f' font-family="sans-serif" fill="{INK}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
    ]
    for number, (title, caption, shapes) in enumerate(panels):
        x = 12 + number * (SIZE + GAP)
        svg.append(f'<g transform="translate({x} {TOP})">')
        svg.append(
            f'<text x="{SIZE / 2:g}" y="-12" font-size="17" font-weight="bold" text-anchor="middle">{title}</text>'
        )
        svg.append(f'<rect width="{SIZE}" height="{SIZE}" rx="6" fill="{FAINT}" stroke="{GREY}"/>')
        svg += shapes
        for row, text in enumerate(caption):
            svg.append(
                f'<text x="{SIZE / 2:g}" y="{SIZE + 24 + 19 * row}" font-size="14" text-anchor="middle">{text}</text>'
            )
        if number:
            svg.append(f'<path d="M-{GAP - 10} {SIZE / 2:g}h20v-7l14 11l-14 11v-7h-20z" fill="{GREY}"/>')
        svg.append("</g>")
    return "\n".join([*svg, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("overview.svg").write_text(make_overview(), "utf-8")
    Path(__file__).with_name("training.svg").write_text(make_training(), "utf-8")
