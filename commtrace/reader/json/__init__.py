"""A trace file's bytes, decoded.

``scan`` is for analysis, ``every_event`` for a picture, ``input_shapes`` for comparing.
"""

from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.events import Hosted, Scan
from commtrace.reader.json.operator_shapes import input_shapes
from commtrace.reader.json.salvage import BROKEN
from commtrace.reader.json.scan import scan
from commtrace.reader.json.whole_file import EveryEvent, every_event

__all__ = [
    "BROKEN",
    "Event",
    "EveryEvent",
    "Hosted",
    "Scan",
    "every_event",
    "input_shapes",
    "scan",
]
