"""The bounds that results are held to, which are the package's own, under the name that tests know them by."""

from pyattn._bounds import *  # noqa: F403
