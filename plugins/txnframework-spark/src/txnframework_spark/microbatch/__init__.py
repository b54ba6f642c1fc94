"""One micro-batch, process by process.

====  ==========================  =====================================================================================
step  process                     what happens
====  ==========================  =====================================================================================
1     source runner (one per      *Take over*, once per run: raise the subscription's epoch, abort transactions that
      load, lives as the run)     earlier runs left open, apply those they committed, read the cursors
                                  (``subscriptions``).
2     source runner               *Plan*: find the end of the batch from announced positions, parents before children,
                                  without crossing the cursor (``planner``, ``batch_plan``). Spark writes ``offsets/N``.
3     source runner               *Partitions*: list aborted entries in the range, and what to register.
4     write tasks                 Spark starts them before the read tasks that feed them. The first one claims the
                                  application for this run and *begins* the transaction; the others find it
                                  (``batch``).
5     read tasks                  *Register* ``(query, run, batch)`` with start, end and epoch on the subscription, then
                                  read ledger ranges to Arrow (``registration``, ``reader``).
6     write tasks                 *Stage*: each attempt writes under its own random branch, and reports the branch when
                                  all its rows are durable (``branch_writer``). A failed attempt's branch is never
                                  reported.
7     sink runner (on the         *Judge* the registered ranges against the cursors; *put* the acknowledgments; *read*
      driver)                     the application record and the epochs *again*; *decide* by one compare-and-set that
                                  lists the winning branches (``verdict``, ``commit``). Spark writes ``commits/N``.
====  ==========================  =====================================================================================

Crash windows, and what the next run finds:

* Before the compare-and-set of step 7: an open transaction. If it holds acknowledgments, the next run aborts it during
  the takeover, otherwise when the run begins its own transaction. Cursors have not moved. The batch is planned or
  replayed with the same range, and is *fresh*.
* After the compare-and-set, before ``commits/N``: a committed batch. The next run applies its acknowledgments during
  the takeover. Spark replays the batch; its range lies before the cursor, so it is a *replay*. The new transaction is
  aborted, and the sink reports success.
* At any point, if the checkpoint is lost: a new query begins at the cursor, exactly after the last committed batch.
* At any point, if only this process is *paused*: after it resumes, its commit finds a newer run or epoch and stops. Or
  its compare-and-set finds the transaction aborted.
"""
