"""Trace attention: all eight steps as data, text, Markdown and an interactive page.

>>> import pyattn
>>> trace = pyattn.trace([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[1, 0], [0, 1]], [[2, 0], [0, 2]])
>>> [step.title for step in trace.steps][:3]
['Prepare inputs', 'Initialise weights', 'Derive keys, queries and values']
"""

from pyattn.tracing._trace import Trace, trace, trace_attention
from pyattn.tracing.heads import HeadTraces
from pyattn.tracing.render.steps import TraceStep

__all__ = ["HeadTraces", "Trace", "TraceStep", "trace", "trace_attention"]
