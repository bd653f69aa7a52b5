"""Test your attention with `check` and `pyattn.compare`.

`check` runs a function on test cases. `pyattn.compare` finds where two functions or modules differ, and why.

>>> import pyattn
>>> pyattn.testing.check(pyattn.attention).passed
True
"""

# _check.py         check: judge every case, and make the report
# _compare.py       compare: two sides, stage by stage
# _assert_close.py  assert_attention_close
# reports.py        the results of check and compare, and their text
#
# cases.py          the cases of check                callee.py  the function under test
# sides.py          the sides of compare: modules, functions, expected numbers
# calling.py        call a user's function: its arguments, its library's arrays, its results
#
# formula.py        attention as data that is computed stage by stage
# bounds.py         rounding bounds of each number
# mistakes.py       known mistakes: copies of the formula with a field or two changed
# causes.py         find the mistake that gives the wrong numbers
#
# gradients.py      gradients of the formula, and their bounds
# gradient_mistakes.py   known mistakes on the way back, and the search for them
# gradient_sides.py      gradients of the sides of compare
#
# command.py        python -m pyattn check            files.py   python -m pyattn compare, of two files
# demo.py           python -m pyattn compare, alone   self_check.py      python -m pyattn test
# worked_example.py, speed.py    python -m pyattn

from typing import TYPE_CHECKING

from pyattn._util.names import showing
from pyattn.testing._assert_close import assert_attention_close
from pyattn.testing._check import check
from pyattn.testing._compare import compare
from pyattn.testing.reports import Cause, CheckResult, Comparison, Failure, GroupResult, Stage

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

if not TYPE_CHECKING:  # type checkers would then accept every name
    __getattr__, __dir__ = showing(__name__, __all__)
