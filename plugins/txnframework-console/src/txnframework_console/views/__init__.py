"""
The views: what each page, and ``txnframework top``, shows. Reading is separate from rendering.

Each module has the query of one view, with ``read``, which returns what the view shows as plain values.
"""
