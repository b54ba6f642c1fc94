"""
A consumer's part in a subscription.

``membership`` attaches a consumer to the ``segments`` that it follows, and detaches it from finished ones.
``attachments`` does so for one segment, and takes lost leases again. ``division`` decides which segments belong to this
process, if several processes share the subscription. ``moves`` carries out seeks, and notices those of others.

Each segment has a ``feed``, from which messages come into the consumer's ``inbox``, and its ``lost_messages``.
``delivery_records`` records deliveries before they are received, and ``acknowledgments`` acknowledges.
"""
