"""Where two attentions differ, and why: `pyattn.compare`.

comparison.py   compare: calls both, makes the table, asks for causes
report.py       what it returns, and how that reads
sides.py        one of the two: a module, a function or expected numbers, and how it is called
kinds.py        what a module or function computes by its own account
formula.py      that as data, computed stage by stage
rounding.py     what each number may be off by
mistakes/       what people get wrong: copies of the formula with a field or two changed
searching.py    which of them gives a side's numbers
"""

from pyattn.testing._comparing.comparison import compare
from pyattn.testing._comparing.report import Cause, Comparison, Stage

__all__ = ["Cause", "Comparison", "Stage", "compare"]
