"""
``txnframework pipeline``: a pipeline that is described by a file instead of a program.

=============  ======================================================================================================
module         what it does
=============  ======================================================================================================
description    the content of ``pipeline.toml``: typed tables, whose descriptions are also its reference
loading        conversion of a file to a description, or one error message with the reason and the place
options        options of sources and sink, from the description
frames         from sources to the one DataFrame that is written: views, transform, all sinks in one
stateful       whether a plan keeps state, as Spark analysed it
analysis       analysis of a pipeline without running it
session        the Spark session of a pipeline
running        one query from its start to its end; ``stopping`` decides when it is stopped
progress       the display of a running pipeline
stores         the progress of a pipeline, from the stores alone
command        the commands
=============  ======================================================================================================

All sinks together are one query, and so one transaction for each micro-batch.
"""
