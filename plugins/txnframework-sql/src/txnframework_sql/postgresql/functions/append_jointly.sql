-- Apply steps on records and append the entries of several managed ledgers, all or nothing; see _joint_appends.py.
--
-- The steps and entries are those of one or several calls, of which no two have a step on the same record, except for
-- checks of an existing one. If a part of any of them is refused, nothing is written, and the answer names every refused
-- step, or every refused ledger. The caller then sends the other calls again.
--
-- Records are locked before ledgers, as everywhere, and ledgers in the order of their ids. So two calls never deadlock: no
-- transaction that holds a ledger waits for a record, and no other one waits for a ledger while it holds another.
--
-- Arrays have one value for each of these, and those of append_to_ledgers, without operations:
--   a step: kinds to contents, as for apply_batches
--   a step on a record with a known key: key_order (its place), in the order of the keys, in which records are locked
--   an index range that must be vacant: vacant_names, vacant_starts, vacant_stops
--
-- The ranges are looked at by a statement of its own, once all records are locked. So it sees the entry of each
-- transaction that checked or wrote one of these records before, and no later one puts an entry before the end of this
-- one. The model of this is tests/models/protocol/excluding.py.
--
-- lock_wait_ms: how long to wait for a lock; 0: as long as the connection's setting says.
--
-- Answers:
--   refused: the places of the steps whose expectations were not met
--   for each step: the version, which it wrote or deleted, or which refused it (NULL: absent), and the index entries that
--     the record had before. Both are NULL if it changes nothing.
--   for each range that is not vacant: its number, and a record with an entry in it
--   the position of each ledger's first entry, unless a step was refused. Ledger id 0: that ledger is gone, sealed or
--     full, or may hold an earlier copy.
CREATE FUNCTION schema_of_store.{name}(
    kinds bigint[], paths text[], partitions text[], expecteds bigint[], lists text[], contents bytea[],
    key_order bigint[], lock_wait_ms bigint, vacant_names text[], vacant_starts bytea[], vacant_stops bytea[],
    managed_ids bigint[], of_ledger_ids bigint[], now_ms bigint,
    entries_max bigint, bytes_max bigint, deduplication_window bigint, forget_every bigint,
    sizes bigint[], sizes_bytes bigint[], sizes_messages bigint[],
    entry_ledgers bigint[], entry_numbers bigint[], datas bytea[], messages_through bigint[],
    copy_ledgers bigint[], copy_numbers bigint[], copy_producers bigint[], names text[], firsts bigint[],
    lasts bigint[], txns text[], branches bigint[], sequences_through bigint[],
    producer_ledgers bigint[], producers text[], lowest bigint[], added bigint[],
    number_ledgers bigint[], coordinators bigint[], numbers text[]
) RETURNS TABLE (
    refused bigint[], versions bigint[], befores text[], taken bigint[], taken_paths text[], taken_partitions text[],
    taken_versions bigint[], ledger_ids bigint[], entry_ids bigint[]
) LANGUAGE plpgsql AS $function$
#variable_conflict use_variable
DECLARE
    place bigint;
    is_there boolean;
    is_absent boolean;
    actual bigint;
    before text;
    pair jsonb;
    has_new boolean := false;
    -- The places of the steps whose records were created only for their locks.
    placeholders bigint[] := '{}';
    path text;
BEGIN
    IF lock_wait_ms > 0 THEN
        PERFORM set_config('lock_timeout', lock_wait_ms::text, true);
    END IF;
    refused := '{}';
    ledger_ids := '{}';
    entry_ids := '{}';
    IF cardinality(kinds) > 0 THEN
        versions := array_fill(NULL::bigint, ARRAY[cardinality(kinds)]);
        befores := array_fill(NULL::text, ARRAY[cardinality(kinds)]);
    END IF;
    -- What is written in this block is undone if a part is refused. The variables keep their values.
    BEGIN
        <<keys>>
        FOREACH place IN ARRAY key_order LOOP
            is_absent := expecteds[place] = -1;
            LOOP
                -- An absent record cannot be locked. Once it is created here, no other transaction can create it before
                -- the end of this one. A record that must be absent, but is not put, is deleted again.
                IF is_absent THEN
                    INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                        VALUES (paths[place], partitions[place], nextval('schema_of_store.txnframework_numbers'), lists[place],
                            coalesce(contents[place], ''))
                        ON CONFLICT DO NOTHING RETURNING r.version INTO actual;
                    IF FOUND THEN
                        IF kinds[place] = 1 THEN
                            versions[place] := actual;
                            has_new := has_new OR lists[place] IS NOT NULL;
                        ELSE
                            placeholders := placeholders || place;
                        END IF;
                        EXIT;
                    END IF;
                END IF;
                IF kinds[place] = 0 THEN
                    SELECT r.version INTO actual FROM schema_of_store.records r
                        WHERE r.path = paths[place] AND r.partition = partitions[place] FOR SHARE;
                    is_there := FOUND;
                ELSE
                    SELECT r.version, r.indexes INTO actual, before FROM schema_of_store.records r
                        WHERE r.path = paths[place] AND r.partition = partitions[place] FOR UPDATE;
                    is_there := FOUND;
                END IF;
                IF is_there THEN
                    IF expecteds[place] NOT IN (actual, -2) THEN
                        refused := refused || place;
                        versions[place] := actual;
                    ELSIF kinds[place] <> 0 THEN
                        IF kinds[place] = 1 THEN
                            UPDATE schema_of_store.records r
                                SET version = nextval('schema_of_store.txnframework_numbers'), indexes = lists[place],
                                    value = contents[place]
                                WHERE r.path = paths[place] AND r.partition = partitions[place]
                                RETURNING r.version INTO STRICT actual;
                        ELSE
                            DELETE FROM schema_of_store.records r
                                WHERE r.path = paths[place] AND r.partition = partitions[place];
                        END IF;
                        versions[place] := actual;
                        befores[place] := before;
                        CONTINUE keys WHEN before IS NOT DISTINCT FROM lists[place];
                        has_new := has_new OR lists[place] IS NOT NULL;
                        FOR pair IN SELECT jsonb_array_elements(before::jsonb) LOOP
                            DELETE FROM schema_of_store.index_entries e
                                WHERE e.index_name = pair ->> 0 AND e.key = decode(pair ->> 1, 'hex')
                                    AND e.path = paths[place] AND e.partition = partitions[place];
                        END LOOP;
                    END IF;
                    EXIT;
                END IF;
                IF expecteds[place] >= 0 THEN
                    refused := refused || place;
                    EXIT;
                END IF;
                EXIT WHEN expecteds[place] = -2 AND kinds[place] <> 1;
                -- The next iteration creates it, or sees what another transaction has created meanwhile.
                is_absent := true;
            END LOOP;
        END LOOP;
        IF cardinality(refused) > 0 THEN
            RAISE EXCEPTION 'a record refuses its step' USING ERRCODE = 'TXN01';
        END IF;

        IF cardinality(vacant_names) > 0 THEN
            SELECT array_agg(v.number), array_agg(t.path), array_agg(t.partition), array_agg(t.version)
                INTO taken, taken_paths, taken_partitions, taken_versions
                FROM unnest(vacant_names, vacant_starts, vacant_stops) WITH ORDINALITY AS v (name, start, stop, number)
                CROSS JOIN LATERAL (
                    SELECT r.path, r.partition, r.version FROM schema_of_store.index_entries e
                    JOIN schema_of_store.records r ON r.path = e.path AND r.partition = e.partition
                    WHERE e.index_name = v.name AND e.key >= v.start AND e.key < v.stop LIMIT 1
                ) AS t;
            IF taken IS NOT NULL THEN
                RAISE EXCEPTION 'a range is not vacant' USING ERRCODE = 'TXN01';
            END IF;
        END IF;

        FOREACH place IN ARRAY placeholders LOOP
            DELETE FROM schema_of_store.records r WHERE r.path = paths[place] AND r.partition = partitions[place];
        END LOOP;
        FOR place IN 1 .. coalesce(cardinality(kinds), 0) LOOP
            CONTINUE WHEN kinds[place] <> 2;
            LOOP
                actual := nextval('schema_of_store.txnframework_numbers');
                path := paths[place] || '/' || lpad(actual::text, 20, '0');
                INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                    VALUES (path, partitions[place], actual, lists[place], contents[place]) ON CONFLICT DO NOTHING;
                EXIT WHEN FOUND;
            END LOOP;
            paths[place] := path;
            versions[place] := actual;
            has_new := has_new OR lists[place] IS NOT NULL;
        END LOOP;
        IF has_new THEN
            INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
                SELECT b.pair ->> 0, decode(b.pair ->> 1, 'hex'), s.path, s.partition
                FROM unnest(paths, partitions, lists, befores) AS s (path, partition, list, before)
                CROSS JOIN LATERAL jsonb_array_elements(s.list::jsonb) AS b (pair)
                WHERE s.before IS DISTINCT FROM s.list;
        END IF;

        IF cardinality(managed_ids) > 0 THEN
            PERFORM FROM schema_of_store.managed_ledgers m WHERE m.id = ANY (managed_ids) ORDER BY m.id
                FOR NO KEY UPDATE;
            SELECT a.ledger_ids, a.entry_ids INTO ledger_ids, entry_ids FROM schema_of_store.{append_to_ledgers}(
                managed_ids, of_ledger_ids, now_ms, entries_max, bytes_max, deduplication_window, forget_every,
                sizes, sizes_bytes, sizes_messages, entry_ledgers, entry_numbers, datas, messages_through,
                copy_ledgers, copy_numbers, copy_producers, names, firsts, lasts, txns, branches, sequences_through,
                producer_ledgers, producers, lowest, added, number_ledgers, coordinators, numbers,
                '{}', false
            ) AS a;
        END IF;
        IF 0 = ANY (ledger_ids) THEN
            RAISE EXCEPTION 'a ledger refuses its entries' USING ERRCODE = 'TXN01';
        END IF;
    EXCEPTION WHEN SQLSTATE 'TXN01' THEN
        RETURN NEXT;
        RETURN;
    END;
    RETURN NEXT;
END
$function$
