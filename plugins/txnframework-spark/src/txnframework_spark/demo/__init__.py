"""The demo: an exactly-once pipeline over real input that is killed repeatedly, and then checked.

``command`` is the command line and ``run`` performs the demo. It loads the input (``input``, ``stage``) and starts
``pipeline`` as a separate process (``processes``). It kills the pipeline and splits segments as ``plan`` says. Finally
it reads the outputs and compares them with the results of plain Python (``fresh``, ``expected``, ``check``).
"""
