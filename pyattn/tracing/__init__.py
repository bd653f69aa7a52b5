"""The eight steps of attention as data: every intermediate by name, as text and as a page.

>>> import pyattn
>>> trace = pyattn.tracing.trace([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[1, 0], [0, 1]], [[2, 0], [0, 2]])
>>> [step.title for step in trace.steps][:3]
['Prepare inputs', 'Initialise weights', 'Derive keys, queries and values']
"""

from pyattn.tracing.data import Step, Trace
from pyattn.tracing.functions import trace, trace_attention
from pyattn.tracing.heads import HeadTraces

__all__ = ["HeadTraces", "Step", "Trace", "trace", "trace_attention"]
