"""The speed of a run."""

from __future__ import annotations

import time

from posenet.training.meters import SpeedMeter


def test_speed_is_measured_since_the_last_reading() -> None:
    meter = SpeedMeter()
    for samples in (8, 2):
        meter.samples = samples
        meter.seconds_waited = 0.01
        time.sleep(0.02)
        speed = meter.read()
        assert 0 < speed["samples_per_s"] <= samples / 0.02
        assert 0 < speed["data_wait"] <= 0.5
    assert meter.samples == 0
