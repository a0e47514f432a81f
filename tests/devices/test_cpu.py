"""The number of CPU cores."""

import os

from posenet.devices.cpu import usable_cores


def test_usable_cores_are_some_of_the_machines_cores():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
