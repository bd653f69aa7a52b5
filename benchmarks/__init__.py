"""How fast pyattn is, beside its peers: ``python -m benchmarks`` (``--help`` lists the options).

grid.py says what is measured and the bar for each, cases.py what a case is, measure.py how, peers.py against whom;
run.py brings them together, memory.py weighs calls and the import, report.py prints the table and writes the JSON,
picture.py draws it.
"""
