"""
Sends of a producer.

``batches`` groups messages into entries and keeps the results of each call. ``segment_sender`` appends the entries of
one segment in order. ``encoded_values`` encodes contents.
"""
