"""For who tests pipelines, and for plugin authors.

``cluster`` is Spark's own cluster, on this machine; ``pipelines`` are pipelines in processes of their own, to be killed
at any step of a batch (``program`` is what they run); ``stores`` looks into what they read and write, and ``outputs``
judges it.
"""
