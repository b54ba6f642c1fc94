"""The main job: an exactly-once pipeline over real input that is killed again and again, and then checked.

``command`` is what a person types, ``run`` carries it out: it loads the input (``input``, ``stage``), starts
``pipeline`` as a separate process, does to it what ``plan`` says (``process``, ``faults``), reads the outputs back and
holds them against what plain Python computes from the input (``expected``, ``check``).
"""
