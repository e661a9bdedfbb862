"""A trace file's bytes, decoded: ``scan`` for analysis, ``every_event`` for a picture."""

from commtrace.reader.json.decoded_event import Event
from commtrace.reader.json.events import Scan
from commtrace.reader.json.salvage import BROKEN
from commtrace.reader.json.scan import scan
from commtrace.reader.json.whole_file import EveryEvent, every_event

__all__ = ["BROKEN", "Event", "EveryEvent", "Scan", "every_event", "scan"]
