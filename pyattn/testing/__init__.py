"""Check an attention of your own: `check` runs it on graded cases, `compare` finds where two attentions differ and why.

>>> import pyattn
>>> pyattn.testing.check(pyattn.attention).passed
True
"""

from pyattn.testing._comparing import Cause, Comparison, Stage, compare
from pyattn.testing.checking import check
from pyattn.testing.closeness import assert_attention_close
from pyattn.testing.report import CheckResult, Failure, GroupResult

__all__ = [
    "Cause",
    "CheckResult",
    "Comparison",
    "Failure",
    "GroupResult",
    "Stage",
    "assert_attention_close",
    "check",
    "compare",
]
