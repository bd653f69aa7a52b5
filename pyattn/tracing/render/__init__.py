"""Text, Markdown and HTML of a trace. Nothing here computes attention."""
