"""
``txnframework pipeline``: a pipeline that is described by a file instead of a program.

================  ===================================================================================================
module            what it does
================  ===================================================================================================
description       the content of ``pipeline.toml``: typed tables, whose descriptions are also its reference
loader            conversion of a file to a description, or one error message; options of sources and sink
frames            the Spark session, and the one DataFrame that is written: views, transform, all sinks in one
python_transform  the search for a transform in Python, and its call
analysis          analysis of a pipeline without running it; whether its plan keeps state
query             one query from its start to its end, and the decision when to stop it
screen            the display of a running pipeline
status            the progress of a pipeline, from the stores alone
output            sentences, tables and JSON of the commands
command           the commands
================  ===================================================================================================

All sinks together are one query, and so one transaction for each micro-batch.
"""
