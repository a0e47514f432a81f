"""Serve a page that finds people in photographs and videos."""

import argparse

from posenet.cli.options import PUBLISHED, add_network_options, make_predictor, positive_int
from posenet.devices.signals import catch_stop_signals
from posenet.inference.app import LOCAL_HOST, app


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of ``app``."""
    text = "address to listen at; 0.0.0.0 lets everybody who reaches this machine use the page"
    parser.add_argument("--host", default=LOCAL_HOST, metavar="ADDRESS", help=text)
    text = "port to listen at (default: the first free one from 7860 on)"
    parser.add_argument("--port", type=positive_int, metavar="N", help=text)
    add_network_options(parser, amp="auto", checkpoint=PUBLISHED)


def run(args: argparse.Namespace) -> None:
    """Serve the page until Ctrl-C, which is reported as in other tools."""
    with catch_stop_signals() as stop_requested:
        app(lambda _: make_predictor(args), host=args.host, port=args.port, stop_requested=stop_requested)
    raise KeyboardInterrupt
