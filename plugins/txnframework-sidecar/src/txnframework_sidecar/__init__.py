"""
The transaction buffer ``sidecar``: messages of open transactions stand beside the topic, and enter it with the commit.

What a transaction sends is appended to a sidecar, a managed ledger beside the topic. Its commit is a marker in the
topic that lists where its messages stand there; who reads the topic reads, at the marker, the messages. So what is
open holds nobody back, what was aborted is never come across, and the order of the topic is the order of the commits.

``model`` holds what entries look like and mean (pure): ``markers`` in the topic and notes in the sidecar, ``index``
the transactions of the sidecar, ``stream`` the markers of the topic, ``parts`` how a transaction is divided into
markers. ``ledgers`` reads both as far as this process has come, ``sending`` appends, ``settling`` ends, ``resolving``
finds the messages of a marker, ``buffer`` is the role.

Two rules carry it. *The first marker decides*: a marker is appended to the ledger of the topic that was open before
the topic was looked at, so a second one, of a process that repeats the end, can only stand in that same ledger, and is
passed over there. *The note comes after the marker*: an entry of the sidecar says that a transaction is over; where it
stands nothing is left to do, so whoever crashed before it is made good by whoever ends the transaction next.
"""
