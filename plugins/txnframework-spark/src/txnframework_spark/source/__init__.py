"""Reading of topics: streams and batches.

One ``InputPlanner`` plans a stream for the whole run (``streaming``, ``planner``). Its parts choose the topics
(``topics``), follow their ends (``following``), decide what is readable (``planning``), limit batches (``admission``)
and take subscriptions over (``takeover``). ``plan_snapshot`` plans a batch for each action (``batch``, ``snapshot``,
``conditions`` for filters). Both cut ranges into tasks (``cutting``, ``partition``), which read page by page into Arrow
(``reading``, ``columns``).
"""
