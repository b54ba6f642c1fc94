"""Reading topics: streams and batches.

A stream is planned by one ``InputPlanner`` for as long as its run lives (``streaming``, ``planner``; ``topics`` which
topics, ``following`` how far, ``planning`` the decisions, ``admission`` how much, ``takeover`` whose subscription), a
batch by ``plan_snapshot`` for each action (``batch``, ``snapshot``, ``conditions`` for filters). Both cut ranges into
tasks alike (``cutting``, ``partition``), which are read alike, page by page, into Arrow (``reading``, ``columns``).
"""
