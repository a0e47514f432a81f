"""Draw photographs.png: annotated people in grey, and in colour what a network found, without the photographs.

python docs/draw_photographs.py data/lspet/val.json checkpoints/lspet/results.json docs/photographs.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

SIDE = 200
"""Of the square of one person in pixels."""
FOOT = 24
"""Height of the text below it."""
COLUMNS = 4
QUANTILES = (0.02, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
"""The people who are drawn, of all people ordered by how many of their keypoints were found, best first."""
MIN_LABELLED = 13
WHITE, PALE, GREY, INK = (255, 255, 255), (205, 200, 195), (90, 90, 90), (60, 60, 60)
ORANGE, BLUE = (20, 122, 224), (208, 111, 31)
GREEN, RED = (60, 160, 60), (40, 40, 200)


class Comparison(NamedTuple):
    """One annotated person and the result that fits best."""

    annotated: np.ndarray
    """(K, 3) x, y, visibility."""
    found: np.ndarray
    """(K, 3) x, y, score; a keypoint that was not found has score 0."""
    is_correct: np.ndarray
    """(K,) whether a keypoint was found up to 0.2 torso lengths from where it is annotated."""

    @property
    def is_labelled(self) -> np.ndarray:
        return self.annotated[:, 2] > 0

    @property
    def share(self) -> float:
        return float(self.is_correct[self.is_labelled].mean())


def compare(truth: dict, results: list[dict], names: list[str]) -> list[Comparison]:
    found: dict[int, list[np.ndarray]] = {}
    for result in results:
        found.setdefault(result["image_id"], []).append(np.reshape(result["keypoints"], (-1, 3)))
    comparisons = []
    for person in truth["annotations"]:
        annotated = np.reshape(person["keypoints"], (-1, 3)).astype(float)
        is_labelled = annotated[:, 2] > 0
        if is_labelled.sum() < MIN_LABELLED or person["image_id"] not in found:
            continue
        limit = max(0.2 * torso_length(person, annotated, names), 1)
        people = np.stack(found[person["image_id"]])
        distances = np.linalg.norm(people[:, :, :2] - annotated[:, :2], axis=2)
        best = np.exp(-((distances[:, is_labelled] / limit) ** 2) / 2).mean(1).argmax()
        comparisons.append(Comparison(annotated, people[best], distances[best] <= limit))
    return sorted(comparisons, key=lambda comparison: -comparison.share)


def torso_length(person: dict, annotated: np.ndarray, names: list[str]) -> float:
    """In pixels, from a shoulder to the hip of the other side, or of people without one a share of their box."""
    length = 0.3 * max(person["bbox"][2:])
    for ends in (("right_shoulder", "left_hip"), ("left_shoulder", "right_hip")):
        shoulder, hip = annotated[[names.index(name) for name in ends]]
        if shoulder[2] and hip[2]:
            length = float(np.linalg.norm(shoulder[:2] - hip[:2]))
    return length


def draw_person(comparison: Comparison, names: list[str], lines: list[tuple[int, int]]) -> np.ndarray:
    """An image (SIDE + FOOT, SIDE, 3) BGR."""
    image = np.full((SIDE + FOOT, SIDE, 3), WHITE, np.uint8)
    annotated, found = comparison.annotated[:, :2], comparison.found[:, :2]
    is_labelled, is_found = comparison.is_labelled, comparison.found[:, 2] > 0
    shown = np.concatenate([annotated[is_labelled], found[is_found]])
    low, high = shown.min(0), shown.max(0)
    zoom = (SIDE - 40) / max(high - low)

    def place(point: np.ndarray) -> tuple[int, int]:
        x, y = (point - (low + high) / 2) * zoom + SIDE / 2
        return int(x), int(y)

    for a, b in lines:
        if is_labelled[a] and is_labelled[b]:
            cv2.line(image, place(annotated[a]), place(annotated[b]), PALE, 7, cv2.LINE_AA)
    for a, b in lines:
        if is_found[a] and is_found[b]:
            cv2.line(image, place(found[a]), place(found[b]), colour_of(names[a], names[b]), 2, cv2.LINE_AA)
    is_drawn = is_labelled & is_found
    for point, is_correct in zip(found[is_drawn], comparison.is_correct[is_drawn], strict=True):
        cv2.circle(image, place(point), 4, GREEN if is_correct else RED, -1, cv2.LINE_AA)
    text = f"{comparison.is_correct[is_labelled].sum()} of {is_labelled.sum()}"
    cv2.putText(image, text, (8, SIDE + 14), cv2.FONT_HERSHEY_SIMPLEX, 0.45, INK, 1, cv2.LINE_AA)
    return image


def colour_of(first: str, second: str) -> tuple[int, int, int]:
    for side, colour in (("right", ORANGE), ("left", BLUE)):
        if first.startswith(side) and second.startswith(side):
            return colour
    return GREY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("output", type=Path)
    args = parser.parse_args()
    truth = json.loads(args.annotations.read_text())
    category = truth["categories"][0]
    lines = [(a - 1, b - 1) for a, b in category["skeleton"]]
    comparisons = compare(truth, json.loads(args.results.read_text()), category["keypoints"])
    chosen = [comparisons[int(quantile * (len(comparisons) - 1))] for quantile in QUANTILES]
    people = [draw_person(comparison, category["keypoints"], lines) for comparison in chosen]
    rows = [np.hstack(people[start : start + COLUMNS]) for start in range(0, len(people), COLUMNS)]
    cv2.imwrite(str(args.output), np.vstack(rows))


if __name__ == "__main__":
    main()
