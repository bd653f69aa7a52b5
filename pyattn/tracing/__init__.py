"""Trace attention: eight steps as data, text, Markdown and an interactive page.

>>> import pyattn
>>> trace = pyattn.trace([[1, 0], [0, 1]], [[1, 0], [0, 1]], [[1, 0], [0, 1]], [[2, 0], [0, 2]])
>>> [step.title for step in trace.steps][:3]
['Prepare inputs', 'Initialise weights', 'Derive keys, queries and values']
"""

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.tracing._trace import trace, trace_attention
from pyattn.tracing.heads import BackwardHeadTraces, HeadTraces
from pyattn.tracing.layers import LayerTrace
from pyattn.tracing.render.layers import LayerStage
from pyattn.tracing.render.steps import TraceStep
from pyattn.tracing.traces import BackwardTrace, Trace

__all__ = [
    "BackwardHeadTraces",
    "BackwardTrace",
    "HeadTraces",
    "LayerStage",
    "LayerTrace",
    "Trace",
    "TraceStep",
    "trace",
    "trace_attention",
]

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)
