"""Mark an attention of your own: `check` runs it on graded cases, `assert_attention_close` judges one result.

>>> import pyattn
>>> pyattn.testing.check(pyattn.attention).passed
True
"""

from pyattn.testing.checking import check
from pyattn.testing.closeness import assert_attention_close
from pyattn.testing.report import CheckResult, Failure, GroupResult

__all__ = ["CheckResult", "Failure", "GroupResult", "assert_attention_close", "check"]
