"""The demo: an exactly-once pipeline over real input that is killed repeatedly, and then checked.

``command`` is the command line and ``run`` performs the demo. It loads the input (``input``, ``stores``) and starts
``pipeline`` as a separate process. It kills the pipeline and splits segments (``faults``). Finally it reads the outputs
and compares them with the results of plain Python (``verdict``). ``report`` displays progress and outcome.
"""
