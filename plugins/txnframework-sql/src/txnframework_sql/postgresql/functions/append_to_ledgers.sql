-- Append the entries of several managed ledgers, for each ledger all or none, in one transaction; see _appends.py.
--
-- Only appends that just add rows are performed here. Every other ledger is left as it is, for append_entries: one that
-- is locked, gone, sealed or full, has another open ledger than the named one, or may hold an earlier copy. No step waits
-- for the lock of a ledger. So one locked ledger delays no other, and two calls never wait for each other's ledgers.
--
-- This is a function and not one statement with several parts, for the reason that append_entries.sql gives.
--
-- Arrays have one value for each of these. A ledger is named by its place in managed_ids:
--   a managed ledger: managed_ids, of_ledger_ids (NULL: any), sizes (its entries), sizes_bytes, sizes_messages
--   an entry: entry_ledgers, entry_numbers (from 0 in each ledger), datas, messages_through
--   an entry with a sequence: copy_ledgers, copy_numbers (of the entry), copy_producers (the place of its producer),
--     names (of its producer), firsts to sequences_through
--   a ledger's producer: producer_ledgers, producers, lowest (its first sequence), added (the number of its sequences)
--   a ledger's coordinator: number_ledgers, coordinators, numbers
--
-- ``payloads`` are sent as notifications; see _payloads.py.
--
-- Answer: the position of each ledger's first entry; ledger id 0: nothing was appended to it.
CREATE FUNCTION schema_of_store.{name}(
    managed_ids bigint[], of_ledger_ids bigint[], now_ms bigint,
    entries_max bigint, bytes_max bigint, deduplication_window bigint, forget_every bigint,
    sizes bigint[], sizes_bytes bigint[], sizes_messages bigint[],
    entry_ledgers bigint[], entry_numbers bigint[], datas bytea[], messages_through bigint[],
    copy_ledgers bigint[], copy_numbers bigint[], copy_producers bigint[], names text[], firsts bigint[],
    lasts bigint[], txns text[], branches bigint[], sequences_through bigint[],
    producer_ledgers bigint[], producers text[], lowest bigint[], added bigint[],
    number_ledgers bigint[], coordinators bigint[], numbers text[],
    channel text, payloads text[]
) RETURNS TABLE (ledger_ids bigint[], entry_ids bigint[]) LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off
AS $function$
#variable_conflict use_column
DECLARE
    opens bigint[];
    starts bigint[];
    befores bigint[];
    times bigint[];
    heads bigint[];
    overlapping bigint[];
    grown record;
    at bigint;
BEGIN
    -- Positions and copies are decided under these locks. Until they are released, every other append, roll, seal,
    -- delete or trim of these ledgers waits.
    SELECT array_agg(coalesce(held.open_ledger_id, 0) ORDER BY w.at) INTO opens
        FROM unnest(managed_ids, of_ledger_ids) WITH ORDINALITY AS w (id, of_ledger_id, at)
        LEFT JOIN LATERAL (
            SELECT m.open_ledger_id, m.sealed FROM schema_of_store.managed_ledgers m
            WHERE m.id = w.id AND m.name IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED
        ) held ON held.sealed = 0 AND held.open_ledger_id = coalesce(w.of_ledger_id, held.open_ledger_id);

    -- The time of an open ledger never decreases, so that it can be searched by time.
    SELECT array_agg(coalesce(s.ledger_id, 0) ORDER BY o.at), array_agg(coalesce(s.entries, 0) ORDER BY o.at),
            array_agg(coalesce(s.messages, 0) ORDER BY o.at),
            array_agg(greatest(now_ms, s.appended_ms) ORDER BY o.at)
        INTO opens, starts, befores, times
        FROM unnest(opens, sizes, sizes_bytes) WITH ORDINALITY AS o (ledger_id, size, bytes, at)
        LEFT JOIN LATERAL (
            SELECT f.ledger_id, f.entries, f.bytes, f.messages, f.appended_ms FROM schema_of_store.ledger_segments f
            WHERE f.ledger_id = o.ledger_id LIMIT 1
        ) s ON s.entries + o.size < entries_max AND s.bytes + o.bytes < bytes_max;

    IF cardinality(producers) > 0 THEN
        SELECT array_agg(coalesce(newest.through, 0) ORDER BY p.at),
                array_agg(p.ledger) FILTER (WHERE newest.last >= p.lowest)
            INTO heads, overlapping
            FROM unnest(producer_ledgers, producers, lowest) WITH ORDINALITY AS p (ledger, producer, lowest, at)
            LEFT JOIN LATERAL (
                SELECT c.last, c.sequences_through AS through FROM schema_of_store.producer_copies c
                WHERE c.managed_id = managed_ids[p.ledger] AND c.producer = p.producer ORDER BY c.last DESC LIMIT 1
            ) newest ON true;
        FOREACH at IN ARRAY coalesce(overlapping, '{}') LOOP
            opens[at] := 0;
        END LOOP;
    END IF;

    ledger_ids := opens;
    entry_ids := starts;
    IF 0 = ALL (opens) THEN
        RETURN NEXT;
        RETURN;
    END IF;

    INSERT INTO schema_of_store.entries (place, messages_through, appended_ms, data)
        SELECT (opens[e.ledger] << 32) + starts[e.ledger] + e.number, befores[e.ledger] + e.through, times[e.ledger],
            e.data
        FROM unnest(entry_ledgers, entry_numbers, datas, messages_through) AS e (ledger, number, data, through)
        WHERE opens[e.ledger] > 0;
    UPDATE schema_of_store.ledger_segments s
        SET entries = s.entries + o.size, bytes = s.bytes + o.bytes, messages = s.messages + o.messages,
            appended_ms = o.now_ms
        FROM unnest(opens, sizes, sizes_bytes, sizes_messages, times) AS o (ledger_id, size, bytes, messages, now_ms)
        WHERE s.ledger_id = o.ledger_id AND o.ledger_id > 0;

    IF cardinality(producers) > 0 THEN
        INSERT INTO schema_of_store.producer_copies (
                managed_id, producer, last, first, ledger_id, entry_id, txn, branch, sequences_through, appended_ms
            )
            SELECT managed_ids[c.ledger], c.name, c.last, c.first, opens[c.ledger], starts[c.ledger] + c.number, c.txn,
                c.branch, heads[c.producer] + c.through, times[c.ledger]
            FROM unnest(copy_ledgers, copy_numbers, copy_producers, names, firsts, lasts, txns, branches, sequences_through)
                AS c (ledger, number, producer, name, first, last, txn, branch, through)
            WHERE opens[c.ledger] > 0;
        FOR grown IN
            SELECT managed_ids[p.ledger] AS managed_id, p.producer, p.added, p.before + p.added - deduplication_window AS old
            FROM unnest(producer_ledgers, producers, added, heads) AS p (ledger, producer, added, before)
            WHERE opens[p.ledger] > 0 AND p.before / forget_every < (p.before + p.added) / forget_every
        LOOP
            -- As append_entries does.
            DELETE FROM schema_of_store.producer_copies c
                WHERE c.managed_id = grown.managed_id AND c.producer = grown.producer AND c.last < (
                    SELECT coalesce(min(o.last) FILTER (WHERE o.through > grown.old), max(o.last) + 1)
                    FROM (
                        SELECT f.last, f.sequences_through AS through FROM schema_of_store.producer_copies f
                        WHERE f.managed_id = grown.managed_id AND f.producer = grown.producer
                        ORDER BY f.last LIMIT 2 * (grown.added + forget_every)
                    ) o
                );
        END LOOP;
    END IF;

    -- Read first: usually the number is stored already, and the row, which all ledgers share, need not be locked.
    INSERT INTO schema_of_store.highest_txn_numbers AS highest (coordinator, number)
        SELECT t.coordinator, t.number FROM (
            SELECT n.coordinator, max(n.number) FROM unnest(number_ledgers, coordinators, numbers)
                AS n (ledger, coordinator, number)
            WHERE opens[n.ledger] > 0 GROUP BY n.coordinator
        ) AS t (coordinator, number)
        WHERE NOT EXISTS (
            SELECT FROM schema_of_store.highest_txn_numbers h WHERE h.coordinator = t.coordinator AND h.number >= t.number
        )
        ORDER BY t.coordinator
        ON CONFLICT (coordinator) DO UPDATE SET number = excluded.number WHERE excluded.number > highest.number;

    PERFORM pg_notify(channel, p.payload) FROM unnest(payloads) AS p (payload);
    RETURN NEXT;
END
$function$
