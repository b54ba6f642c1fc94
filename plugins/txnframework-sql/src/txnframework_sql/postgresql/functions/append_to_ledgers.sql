-- Append the entries of several managed ledgers, for each ledger all or none, in one transaction, with the write
-- operations that announce some of them; see _appends.py.
--
-- Only appends that just add rows are performed here. Every other ledger is left as it is, for append_entries or for
-- steps: one that is locked, gone, sealed or full, has another open ledger than the named one, or may hold an earlier
-- copy. So is a ledger with an operation whose header is locked, or is not at its expected version. No step waits for the
-- lock of a header, or of one ledger of several. So one locked row delays no other ledger, and two calls never wait for
-- each other's rows. With ``waits``, there is one ledger, whose lock is waited for. Headers are locked before ledgers, and
-- no transaction that holds a ledger waits for a header.
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
-- ``intents`` has a row of texts for each write operation: 1 its ledger, 2 the number of its first entry; 3 path,
-- 4 partition and 5 expected version of its header; 6 prefix, 7 partition and 8 list of index entries of its record; its
-- JSON 9 before the ledger, 10 between ledger and position, and 11 after the position. It is one array, because each
-- array that a function takes costs some microseconds, also an empty one.
--
-- Answers:
--   the position of each ledger's first entry; ledger id 0: nothing was appended to it
--   for each write operation: the version of its header (NULL: locked by another transaction, or absent), the number of
--     its record, which is also the version (NULL: not written), and the position in it
CREATE FUNCTION schema_of_store.{name}(
    managed_ids bigint[], of_ledger_ids bigint[], now_ms bigint,
    entries_max bigint, bytes_max bigint, deduplication_window bigint, forget_every bigint,
    sizes bigint[], sizes_bytes bigint[], sizes_messages bigint[],
    entry_ledgers bigint[], entry_numbers bigint[], datas bytea[], messages_through bigint[],
    copy_ledgers bigint[], copy_numbers bigint[], copy_producers bigint[], names text[], firsts bigint[],
    lasts bigint[], txns text[], branches bigint[], sequences_through bigint[],
    producer_ledgers bigint[], producers text[], lowest bigint[], added bigint[],
    number_ledgers bigint[], coordinators bigint[], numbers text[],
    intents text[], waits boolean
) RETURNS TABLE (
    ledger_ids bigint[], entry_ids bigint[], found_versions bigint[], record_numbers bigint[], afters text[]
) LANGUAGE plpgsql
SET enable_hashjoin = off SET enable_mergejoin = off
AS $function$
#variable_conflict use_column
DECLARE
    opens bigint[];
    starts bigint[];
    befores bigint[];
    times bigint[];
    throughs bigint[];
    overlapping bigint[];
    grown record;
    at bigint;
    refused bigint[];
    paths text[];
BEGIN
    IF cardinality(intents) > 0 THEN
        -- Until the commit, no other transaction changes these headers: the check of an operation holds as long.
        SELECT array_agg(held.version ORDER BY i.at),
                array_agg(intents[i.at][1]::bigint) FILTER (WHERE held.version IS DISTINCT FROM intents[i.at][5]::bigint)
            INTO found_versions, refused
            FROM generate_subscripts(intents, 1) AS i (at)
            LEFT JOIN LATERAL (
                SELECT r.version FROM schema_of_store.records r
                WHERE r.path = intents[i.at][3] AND r.partition = intents[i.at][4] FOR SHARE SKIP LOCKED
            ) held ON true;
        FOREACH at IN ARRAY coalesce(refused, '{}') LOOP
            managed_ids[at] := NULL;
        END LOOP;
    END IF;
    IF waits THEN
        PERFORM FROM schema_of_store.managed_ledgers m WHERE m.id = managed_ids[1] FOR NO KEY UPDATE;
    END IF;

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
            INTO throughs, overlapping
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
                c.branch, throughs[c.producer] + c.through, times[c.ledger]
            FROM unnest(copy_ledgers, copy_numbers, copy_producers, names, firsts, lasts, txns, branches, sequences_through)
                AS c (ledger, number, producer, name, first, last, txn, branch, through)
            WHERE opens[c.ledger] > 0;
        FOR grown IN
            SELECT managed_ids[p.ledger] AS managed_id, p.producer, p.added, p.before + p.added - deduplication_window AS old
            FROM unnest(producer_ledgers, producers, added, throughs) AS p (ledger, producer, added, before)
            -- Nothing is old before the window is full. Afterwards the time differs from ledger to ledger: producers that
            -- send to many ledgers usually count alike.
            WHERE opens[p.ledger] > 0 AND p.before + p.added > deduplication_window
                AND (p.before + managed_ids[p.ledger]) / forget_every
                    < (p.before + p.added + managed_ids[p.ledger]) / forget_every
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

    -- Read first: usually the number is stored already.
    INSERT INTO schema_of_store.highest_txn_numbers AS highest (coordinator, managed_id, number)
        SELECT t.coordinator, t.managed_id, t.number FROM (
            SELECT n.coordinator, managed_ids[n.ledger], max(n.number)
            FROM unnest(number_ledgers, coordinators, numbers) AS n (ledger, coordinator, number)
            WHERE opens[n.ledger] > 0 GROUP BY n.coordinator, managed_ids[n.ledger]
        ) AS t (coordinator, managed_id, number)
        WHERE NOT EXISTS (
            SELECT FROM schema_of_store.highest_txn_numbers h
            WHERE h.coordinator = t.coordinator AND h.managed_id = t.managed_id AND h.number >= t.number
        )
        ON CONFLICT (coordinator, managed_id) DO UPDATE SET number = excluded.number WHERE excluded.number > highest.number;

    IF cardinality(intents) > 0 THEN
        SELECT array_agg(n.number ORDER BY n.at),
                array_agg(n.prefix || '/' || lpad(n.number::text, 20, '0') ORDER BY n.at),
                array_agg(n.after ORDER BY n.at)
            INTO record_numbers, paths, afters
            FROM (
                SELECT i.at, i.prefix,
                    CASE WHEN opens[i.ledger] > 0 THEN nextval('schema_of_store.txnframework_numbers') END AS number,
                    CASE WHEN starts[i.ledger] + i.number > 0
                        THEN opens[i.ledger] || ':' || (starts[i.ledger] + i.number - 1)
                        ELSE (
                            SELECT m.last_ledger_id || ':' || m.last_entry_id FROM schema_of_store.managed_ledgers m
                            WHERE m.id = managed_ids[i.ledger]
                        ) END AS after
                FROM (
                    SELECT o.at, intents[o.at][1]::bigint, intents[o.at][2]::bigint, intents[o.at][6]
                    FROM generate_subscripts(intents, 1) AS o (at)
                ) AS i (at, ledger, number, prefix)
            ) n;
        -- If a record was written with such a number in its whole key, the key is not unique. The client repeats the
        -- call, which then takes the next numbers.
        INSERT INTO schema_of_store.records (path, partition, version, indexes, value)
            SELECT paths[i.at], intents[i.at][7], record_numbers[i.at], intents[i.at][8], convert_to(
                intents[i.at][9] || opens[intents[i.at][1]::bigint] || intents[i.at][10] || afters[i.at] || intents[i.at][11],
                'UTF8'
            )
            FROM generate_subscripts(intents, 1) AS i (at)
            WHERE record_numbers[i.at] IS NOT NULL;
        INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
            SELECT e.pair ->> 0, decode(e.pair ->> 1, 'hex'), paths[i.at], intents[i.at][7]
            FROM generate_subscripts(intents, 1) AS i (at)
            CROSS JOIN LATERAL jsonb_array_elements(intents[i.at][8]::jsonb) AS e (pair)
            WHERE record_numbers[i.at] IS NOT NULL;
    END IF;
    RETURN NEXT;
END
$function$
