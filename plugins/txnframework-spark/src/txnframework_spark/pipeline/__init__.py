"""
``txnframework pipeline``: a pipeline that is a file instead of a program.

=============  ======================================================================================================
module         what it does
=============  ======================================================================================================
description    what stands in ``pipeline.toml``: typed tables, whose descriptions are also its reference
loading        from a file to a description, or one sentence that says what is wrong and where
options        what sources and sink are told, from the description
frames         from sources to the one DataFrame that is written: views, transform, all sinks in one
stateful       whether a plan keeps state, as Spark analysed it
analysis       what a pipeline would do, without doing it
session        the Spark that it runs on
running        one query from its start to its end; ``stopping`` decides when it is stopped
progress       what a person sees of it
progressing    how far it is, from the stores alone
command        what a person types
=============  ======================================================================================================

However many sinks there are, they are one query, and so one transaction for each micro-batch.
"""
