"""One micro-batch, process by process.

====  ==========================  =====================================================================================
step  process                     what happens
====  ==========================  =====================================================================================
1     source runner (one per      *Take over*, once in a run: raise the subscription's epoch, end what earlier runs left
      load, lives as the run)     open, apply what they committed, read the cursors (``takeover``).
2     source runner               *Plan*: how far announced positions reach, parents before children, not across the
                                  cursor (``planner``, ``planning``). Spark writes the end into ``offsets/N``.
3     source runner               *Partitions*: what is aborted in the range, and what to register.
4     write tasks                 Spark starts them before the read tasks they pull from. The first one claims the
                                  application for this run and *begins* the transaction, the others find it
                                  (``applications``).
5     read tasks                  *Register* ``(query, run, batch)`` with start, end and epoch on the subscription, then
                                  read ledger ranges to Arrow (``registration``, ``reading``).
6     write tasks                 *Stage*: each attempt writes under a random branch of its own and reports it when all
                                  its rows are durable (``staging``). A failed attempt's branch is never reported.
7     sink runner (on the         *Judge* the registered ranges against the cursors; *put* the acknowledgments; *read
      driver)                     again* the application record and the epochs; *decide* by one compare-and-set that
                                  lists the winning branches (``judging``, ``committing``). Spark writes ``commits/N``.
====  ==========================  =====================================================================================

Where it may be killed, and what the next run finds:

* before 7's compare-and-set: an open transaction. The next run aborts it (taking over, if it holds acknowledgments, and
  beginning its own); cursors have not moved; the batch is planned or replayed with the same range and is *fresh*.
* after it, before ``commits/N``: the batch is committed. The next run applies its acknowledgments when it takes
  over, Spark replays the batch, its range lies before the cursor: a *replay*, aborted and answered with success.
* anywhere, and the checkpoint is lost: a new query begins at the cursor, which is exactly behind the last committed
  batch.
* anywhere, and only this process is *paused*: when it goes on, its commit finds a newer run or epoch and stops, or its
  compare-and-set finds the transaction aborted.
"""
