"""Reading of topics: streams and batches.

One ``InputPlanner`` plans a stream for the whole run (``stream``, ``planner``). Its parts take subscriptions over
(``subscriptions``), choose the topics and watch the ends of their segments (``topics``), decide what is readable
(``batch_plan``), count what is unread (``backlog``) and limit batches (``admission``). ``plan_snapshot`` plans a batch
for each action (``snapshot``, ``filters``). Both divide ranges into tasks (``partitions``), which read page by page
into Arrow (``reader``).
"""
