-- Append the entries of several calls, adjacent and in order, all or none; see _appends.py, which groups the calls.
--
-- This is a function and not one statement with several parts. At READ COMMITTED, each statement in a function sees
-- everything that was committed when that statement began. All parts of one statement see only what was committed when
-- the whole statement began. So a call that waited for the lock would not see the copies that the previous holder added,
-- and would store them a second time.
--
-- Arrays have one value for each of these:
--   a call: call_entries and call_bytes, the entries and bytes up to its end
--   an entry: datas, messages_through
--   an entry with a sequence: at_entries (the entry's number), at_producers (the producer's number), firsts to
--     sequences_through
--   a producer: lowest (its first sequence), added (the number of its sequences)
--   a call and a coordinator: number_ends (the call's end), coordinators, numbers
--
-- Answers:
--   'appended', with the position of the first entry and the number of appended entries. The call that fills a ledger
--     closes it; the following calls are not appended.
--   'copies', with one row for each sequence that is stored already; nothing was appended.
--   'gone', 'sealed', 'closed': nothing was appended.
CREATE FUNCTION schema_of_store.{name}(
    of_managed_id bigint, of_ledger_id bigint, now_ms bigint,
    entries_max bigint, bytes_max bigint, deduplication_window bigint, forget_every bigint,
    call_entries bigint[], call_bytes bigint[], datas bytea[], messages_through bigint[],
    at_entries bigint[], at_producers bigint[], firsts bigint[], lasts bigint[], txns text[], branches bigint[],
    sequences_through bigint[],
    producers text[], lowest bigint[], added bigint[],
    number_ends bigint[], coordinators bigint[], numbers text[]
) RETURNS TABLE (
    answer text, ledger_id bigint, entry_id bigint, entries bigint,
    at_entry bigint, copy_first bigint, copy_last bigint, copy_txn text, copy_branch bigint
) LANGUAGE plpgsql
AS $function$
#variable_conflict use_column
DECLARE
    managed record;
    totals record;
    filling record;
    grown record;
    heads bigint[];
    may_overlap boolean;
    size bigint := cardinality(datas);
    size_bytes bigint := call_bytes[cardinality(call_bytes)];
    is_full boolean;
    next_ledger_id bigint;
BEGIN
    -- Positions and copies are decided under this lock. Until it is released, every other append, roll, seal, delete or
    -- trim of this managed ledger waits for the same lock.
    SELECT m.sealed, m.open_ledger_id INTO managed
        FROM schema_of_store.managed_ledgers m WHERE m.id = of_managed_id AND m.name IS NOT NULL FOR NO KEY UPDATE;
    answer := CASE
        WHEN NOT FOUND THEN 'gone'
        WHEN managed.sealed <> 0 THEN 'sealed'
        WHEN of_ledger_id <> managed.open_ledger_id THEN 'closed'
    END;
    IF answer IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;

    IF cardinality(producers) > 0 THEN
        SELECT array_agg(coalesce(newest.through, 0) ORDER BY p.at), coalesce(bool_or(newest.last >= p.lowest), false)
            INTO heads, may_overlap
            FROM unnest(producers, lowest) WITH ORDINALITY AS p (producer, lowest, at)
            LEFT JOIN LATERAL (
                SELECT c.last, c.sequences_through AS through FROM schema_of_store.producer_copies c
                WHERE c.managed_id = of_managed_id AND c.producer = p.producer ORDER BY c.last DESC LIMIT 1
            ) newest ON true;
        IF may_overlap THEN
            -- Copies of one producer do not overlap, so only the first copy that ends at or after a sequence matters.
            RETURN QUERY
                SELECT 'copies', copy.ledger_id, copy.entry_id, NULL::bigint, s.at, copy.first, copy.last, copy.txn, copy.branch
                FROM unnest(at_entries, at_producers, firsts, lasts) AS s (at, producer, first, last)
                CROSS JOIN LATERAL (
                    SELECT c.* FROM schema_of_store.producer_copies c
                    WHERE c.managed_id = of_managed_id AND c.producer = producers[s.producer] AND c.last >= s.first
                    ORDER BY c.last LIMIT 1
                ) copy
                WHERE copy.first <= s.last;
            IF FOUND THEN
                RETURN;
            END IF;
        END IF;
    END IF;

    -- The time of an open ledger never decreases, so that it can be searched by time.
    SELECT s.entries, s.bytes, s.messages, greatest(now_ms, s.appended_ms) AS appended_ms INTO STRICT totals
        FROM schema_of_store.ledger_segments s WHERE s.ledger_id = managed.open_ledger_id;
    SELECT c.entries, c.bytes INTO filling FROM unnest(call_entries, call_bytes) AS c (entries, bytes)
        WHERE totals.entries + c.entries >= entries_max OR totals.bytes + c.bytes >= bytes_max
        ORDER BY c.entries LIMIT 1;
    is_full := FOUND;
    IF is_full THEN
        size := filling.entries;
        size_bytes := filling.bytes;
    END IF;
    INSERT INTO schema_of_store.entries (place, messages_through, appended_ms, data)
        SELECT (managed.open_ledger_id << 32) + totals.entries + e.at - 1, totals.messages + e.through,
            totals.appended_ms, e.data
        FROM unnest(datas, messages_through) WITH ORDINALITY AS e (data, through, at)
        WHERE e.at <= size;
    UPDATE schema_of_store.ledger_segments s
        SET entries = totals.entries + size, bytes = totals.bytes + size_bytes,
            messages = totals.messages + messages_through[size], appended_ms = totals.appended_ms
        WHERE s.ledger_id = managed.open_ledger_id;

    IF cardinality(producers) > 0 THEN
        INSERT INTO schema_of_store.producer_copies (
                managed_id, producer, last, first, ledger_id, entry_id, txn, branch, sequences_through, appended_ms
            )
            SELECT of_managed_id, producers[s.producer], s.last, s.first, managed.open_ledger_id,
                totals.entries + s.at - 1, s.txn, s.branch, heads[s.producer] + s.through, totals.appended_ms
            FROM unnest(at_entries, at_producers, firsts, lasts, txns, branches, sequences_through)
                AS s (at, producer, first, last, txn, branch, through)
            WHERE s.at <= size;
        FOR grown IN
            SELECT p.producer, p.added, p.before, p.before + p.added - deduplication_window AS old
            FROM unnest(producers, added, heads) AS p (producer, added, before)
            WHERE size = cardinality(datas) AND p.before / forget_every < (p.before + p.added) / forget_every
        LOOP
            -- Delete the copies before the first one that is still needed. Up to twice as many are searched as can have
            -- been added since the last search, to catch up with copies that had to be kept before.
            DELETE FROM schema_of_store.producer_copies c
                WHERE c.managed_id = of_managed_id AND c.producer = grown.producer AND c.last < (
                    SELECT coalesce(min(o.last) FILTER (WHERE o.through > grown.old), max(o.last) + 1)
                    FROM (
                        SELECT f.last, f.sequences_through AS through FROM schema_of_store.producer_copies f
                        WHERE f.managed_id = of_managed_id AND f.producer = grown.producer
                        ORDER BY f.last LIMIT 2 * (grown.added + forget_every)
                    ) o
                );
        END LOOP;
    END IF;

    -- Read first: usually the number is stored already.
    INSERT INTO schema_of_store.highest_txn_numbers AS highest (coordinator, managed_id, number)
        SELECT t.coordinator, of_managed_id, max(t.number)
        FROM unnest(number_ends, coordinators, numbers) AS t (at, coordinator, number)
        WHERE t.at <= size AND NOT EXISTS (
            SELECT FROM schema_of_store.highest_txn_numbers h
            WHERE h.coordinator = t.coordinator AND h.managed_id = of_managed_id AND h.number >= t.number
        )
        GROUP BY t.coordinator
        ON CONFLICT (coordinator, managed_id) DO UPDATE SET number = excluded.number WHERE excluded.number > highest.number;

    IF is_full THEN
        -- In the same commit, so that a reader of the full ledger's last entry finds the next ledger open.
        UPDATE schema_of_store.counters SET value = value + 1 WHERE name = 'ledger' RETURNING value INTO STRICT next_ledger_id;
        INSERT INTO schema_of_store.ledger_segments (ledger_id, managed_id, trimming, entries, bytes, messages, appended_ms)
            VALUES (next_ledger_id, of_managed_id, 0, 0, 0, 0, totals.appended_ms);
        UPDATE schema_of_store.managed_ledgers m
            SET open_ledger_id = next_ledger_id, last_ledger_id = managed.open_ledger_id,
                last_entry_id = totals.entries + size - 1
            WHERE m.id = of_managed_id;
    END IF;

    answer := 'appended';
    ledger_id := managed.open_ledger_id;
    entry_id := totals.entries;
    entries := size;
    RETURN NEXT;
END
$function$
