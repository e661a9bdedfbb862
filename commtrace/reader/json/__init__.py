"""A trace file's bytes, decoded.

``scan`` is for analysis, ``every_event`` for a picture, ``operator_inputs`` for what operators
work on, ``python_functions`` for what calls them.
"""

from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.events import Hosted, Scan
from commtrace.reader.json.operators import (
    OperatorInputs,
    mentions,
    operator_inputs,
    python_functions,
)
from commtrace.reader.json.salvage import BROKEN
from commtrace.reader.json.scan import scan
from commtrace.reader.json.whole_file import EveryEvent, every_event

__all__ = [
    "BROKEN",
    "Event",
    "EveryEvent",
    "Hosted",
    "OperatorInputs",
    "Scan",
    "every_event",
    "mentions",
    "operator_inputs",
    "python_functions",
    "scan",
]
