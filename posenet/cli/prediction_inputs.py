"""The inputs of ``predict``: from its flags and from lists of files."""

from __future__ import annotations

import argparse
import codecs
import itertools
import logging
import os
import sys
from typing import BinaryIO

from posenet.errors import ConfigError, DataError
from posenet.inference.media.sources import CameraSource, Source, UrlSource, find_sources
from posenet.inference.media.video_library import WITHOUT_PYAV, has_pyav

_log = logging.getLogger(__name__)


def find_inputs(args: argparse.Namespace, world_size: int) -> list[Source]:
    """The inputs that the flags name, each once; "-" stands for all lists of files."""
    inputs = list(args.inputs)
    names = dict.fromkeys(["-", *args.list] if "-" in inputs else args.list)
    if names and "-" not in inputs:
        inputs.append("-")
    lists = [_read_listed(args, name) for name in names]
    sources = find_sources(inputs, itertools.chain.from_iterable(lists), args.camera, recursive=args.recursive)
    if not sources:
        raise DataError("no input: name images, videos, folders or a camera, or pass a list of files with --list")
    live = [source.name for source in sources if may_be_live(source)]
    if world_size > 1 and (live or args.show):
        reason = "--show" if args.show else live[0]
        raise ConfigError(f"{reason} needs a single process; leave out --nproc and the launcher")
    cameras = [source.name for source in sources if isinstance(source, CameraSource)]
    if (args.shard or args.resume) and cameras:
        raise ConfigError(f"--shard and --resume need inputs that can be read again, unlike {cameras[0]}")
    if not has_pyav() and any(source.kind == "video" for source in sources):
        _log.info(WITHOUT_PYAV)
    return sources


def may_be_live(source: Source) -> bool:
    """Whether a source is a camera, or a video at an address, which may be a live stream."""
    return isinstance(source, CameraSource) or (isinstance(source, UrlSource) and source.kind == "video")


def _read_listed(args: argparse.Namespace, name: str) -> list[str]:
    """The entries of a list of files; "-" is standard input."""
    if name == "-":
        return args.standard_input if args.standard_input is not None else read_file_list(sys.stdin.buffer)
    try:
        with open(name, "rb") as file:
            return read_file_list(file)
    except OSError as error:
        raise DataError(f"cannot read the list of files {name}: {error.strerror}; give a text file") from error


def read_file_list(file: BinaryIO) -> list[str]:
    """Read a list of files with one per line, or with a NUL after each, as ``find -print0`` writes it.

    Windows tools may write it as UTF-16, or with a byte order mark.
    """
    data = file.read()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = os.fsencode(data.decode("utf-16", errors="replace"))
    data = data.removeprefix(codecs.BOM_UTF8)
    entries = data.split(b"\0") if b"\0" in data else [line.strip() for line in data.splitlines()]
    return [os.fsdecode(entry) for entry in entries if entry]
