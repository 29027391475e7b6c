"""What a run shows of itself: the timeline of a step, as data, as text and as a picture."""

from jaxnet.report.show import draw as draw
from jaxnet.report.show import timeline_json as timeline_json
from jaxnet.report.show import timeline_text as timeline_text
from jaxnet.report.show import write_png as write_png
from jaxnet.report.timeline import DeviceStep as DeviceStep
from jaxnet.report.timeline import Span as Span
from jaxnet.report.timeline import TimedCollective as TimedCollective
from jaxnet.report.timeline import Timeline as Timeline
from jaxnet.report.timeline import timeline as timeline
from jaxnet.report.trace import Event as Event
from jaxnet.report.trace import Trace as Trace
from jaxnet.report.trace import read_traces as read_traces
