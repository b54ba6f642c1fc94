"""Reading of topics: streams and batches.

One ``InputPlanner`` plans a stream for the whole run (``stream``, ``planner``). Its parts take subscriptions over
(``subscriptions``), and choose the topics and watch the ends of their segments (``topics``). They decide the content of
a batch (``batch_plan``), count unread messages (``backlog``) and limit batches (``admission``). ``plan_snapshot`` plans
a batch for each action (``snapshot``, ``filters``). Both divide ranges into tasks (``partitions``), which read page by
page into Arrow (``reader``).
"""
