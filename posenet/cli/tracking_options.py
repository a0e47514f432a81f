"""Options of ``predict`` that give the people of videos an identity."""

from __future__ import annotations

import argparse

from posenet.cli.options import SWITCH
from posenet.inference.media.frame_tracking import FrameTracker
from posenet.settings import load_config


def add_tracking_options(parser: argparse.ArgumentParser) -> None:
    """Add the options; ``--smooth`` and ``--trails`` imply ``--track``."""
    parser.add_argument(
        "--track",
        **SWITCH,
        help="give every person of a video an id and a colour that stay; people are left out until they are confirmed",
    )
    parser.add_argument(
        "--smooth",
        **SWITCH,
        help="remove the jitter of keypoints in videos; implies --track",
    )
    parser.add_argument(
        "--trails",
        **SWITCH,
        help="draw where every person of a video was in the last seconds; implies --track",
    )


def make_frame_tracker(args: argparse.Namespace) -> FrameTracker | None:
    """The tracker that the options ask for, with the settings of ``--config`` and ``--set``; None without tracking."""
    if not (args.track or args.smooth or args.trails):
        return None
    overrides = [*args.overrides, "tracking.smooth=true"] if args.smooth else args.overrides
    return FrameTracker(load_config(args.config, overrides).tracking)
