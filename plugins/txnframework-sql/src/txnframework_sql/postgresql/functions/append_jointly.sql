-- Apply steps on records and append the entries of several managed ledgers, all or nothing; see _joint_appends.py.
--
-- The steps and entries are those of one or several calls, of which no two have a step on the same record, except for
-- checks of an existing one. If a part of any of them is refused, nothing is written, and the answer names every refused
-- step, or every refused ledger. The caller then sends the other calls again.
--
-- Everything is locked and examined before the first write, so nothing has to be undone, except for records that were
-- created for their locks. Records are locked before ledgers, as everywhere, and ledgers in the order of their ids. So two
-- calls never deadlock: no transaction that holds a ledger waits for a record, and no other one waits for a ledger while
-- it holds another.
--
-- Most calls have one to three steps and ledgers. A loop of plain statements on single rows is then faster than
-- statements on sets.
--
-- Arrays have one value for each of these:
--   a step: kinds (0 check, 1 put, 3 delete), paths, partitions, expecteds (a version, -1 absent, -2 any), lists (the
--     record's own list of its index entries), contents; and key_order (its place), in the order of the keys, in which
--     records are locked
--   an index entry of a put: index_places (of its step), index_names, index_keys
--   an index range that must be vacant: vacant_names, vacant_starts, vacant_stops
--   a managed ledger, in the order of their ids: managed_ids, sizes (its entries), sizes_bytes, sizes_messages
--   an entry, in the order of the ledgers: datas, messages_through (from the first entry of its ledger on)
--   a coordinator: coordinators, numbers (of its transactions)
--
-- The ranges are looked at by a statement of its own, once all records are locked. So it sees the entry of each
-- transaction that checked or wrote one of these records before, and no later one puts an entry before the end of this
-- one. The model of this is tests/models/protocol/excluding.py.
--
-- lock_wait_ms: how long to wait for a lock; 0: as long as the connection's setting says.
--
-- The step may be the last part of a transaction of an application, whose connection then calls this. Locks are held
-- until its COMMIT, which follows at once, and no transaction waits for a row of the application while it holds one of
-- these locks. Then
--   witness: the random key of an advisory lock that the store holds. An advisory lock is in one database, so the
--     connection is one to the database of the store if the lock is not free. NULL: a connection of the store.
--   pause_ms_max: how long the server lets the transaction wait for its COMMIT, if the connection's own setting is not
--     shorter. A process that stops in between must not hold the locks.
--   pid, began_us, mark: the transaction that was joined before, as the statement of the join found it; NULL: the driver
--     shows whether it has ended
--
-- Answers:
--   unjoined: why nothing was done for an application (NULL: it was). 1: the lock is free. 2: reads are of a snapshot, in
--     which neither the cursors nor the ranges are those of now. 3: the application has ended the transaction. 4: it was
--     rolled back to an older savepoint.
--   is_outermost: whether the first record that the steps created shows that no savepoint is open. A row shows the
--     transaction, or the savepoint in it, that wrote the row.
--   refused: the places of the steps whose expectations were not met
--   for each step: the version, which it wrote or deleted, or which refused it (NULL: absent), and the index entries that
--     the record had before. Both are NULL if it changes nothing.
--   for each range that is not vacant: its number, and a record with an entry in it
--   the position of each ledger's first entry, unless a step was refused. Ledger id 0: that ledger is gone, sealed or
--     full.
CREATE FUNCTION schema_of_store.{name}(
    witness bigint, pause_ms_max bigint, pid bigint, began_us bigint, mark text,
    kinds bigint[], paths text[], partitions text[], expecteds bigint[], lists text[], contents bytea[],
    key_order bigint[], lock_wait_ms bigint, index_places bigint[], index_names text[], index_keys bytea[],
    vacant_names text[], vacant_starts bytea[], vacant_stops bytea[],
    now_ms bigint, entries_max bigint, bytes_max bigint,
    managed_ids bigint[], sizes bigint[], sizes_bytes bigint[], sizes_messages bigint[],
    datas bytea[], messages_through bigint[], coordinators bigint[], numbers text[]
) RETURNS TABLE (
    unjoined bigint, is_outermost boolean,
    refused bigint[], versions bigint[], befores text[], taken bigint[], taken_paths text[], taken_partitions text[],
    taken_versions bigint[], ledger_ids bigint[], entry_ids bigint[]
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_variable
DECLARE
    place bigint;
    at bigint;
    is_outer boolean;
    actual bigint;
    before text;
    pair jsonb;
    -- The places of the steps whose records were created here.
    made bigint[] := '{}';
    taken_path text;
    taken_partition text;
    own_pause_ms bigint;
    open_id bigint;
    is_sealed bigint;
    start bigint;
    messages_before bigint;
    appended_ms bigint;
    -- For each ledger.
    message_counts bigint[] := '{}';
    times bigint[] := '{}';
    done bigint := 0;
    highest text;
BEGIN
    IF witness IS NOT NULL THEN
        unjoined := CASE
            WHEN pg_try_advisory_xact_lock_shared(witness) THEN 1
            WHEN current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN 2
            WHEN pid <> pg_backend_pid() OR began_us <> (extract(epoch FROM now()) * 1000000)::bigint THEN 3
            WHEN mark <> coalesce(current_setting('txnframework.joined', true), '') THEN 4
        END;
        IF unjoined IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
        own_pause_ms := extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
        IF own_pause_ms = 0 OR own_pause_ms > pause_ms_max THEN
            PERFORM set_config('idle_in_transaction_session_timeout', pause_ms_max::text, true);
        END IF;
        -- A confirmed commit must be on disk.
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
    END IF;
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

    FOREACH place IN ARRAY key_order LOOP
        at := expecteds[place];
        LOOP
            IF at = -1 THEN
                -- An absent record cannot be locked. Once it is created here, no other transaction can create it before
                -- the end of this one. A record that must be absent, but is not put, is deleted again.
                INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                    VALUES (paths[place], partitions[place], nextval('schema_of_store.txnframework_numbers'), lists[place],
                        coalesce(contents[place], ''))
                    ON CONFLICT DO NOTHING
                    RETURNING r.version, r.xmin = pg_current_xact_id()::xid INTO actual, is_outer;
                IF FOUND THEN
                    made := made || place;
                    versions[place] := actual;
                    is_outermost := coalesce(is_outermost, is_outer);
                    EXIT;
                END IF;
            END IF;
            IF kinds[place] = 0 THEN
                SELECT r.version, NULL INTO actual, before FROM schema_of_store.records r
                    WHERE r.path = paths[place] AND r.partition = partitions[place] FOR SHARE;
            ELSE
                SELECT r.version, r.indexes INTO actual, before FROM schema_of_store.records r
                    WHERE r.path = paths[place] AND r.partition = partitions[place] FOR UPDATE;
            END IF;
            IF actual IS NOT NULL THEN
                IF expecteds[place] NOT IN (actual, -2) THEN
                    refused := refused || place;
                    versions[place] := actual;
                ELSIF kinds[place] <> 0 THEN
                    versions[place] := actual;
                    befores[place] := before;
                END IF;
                EXIT;
            END IF;
            IF at >= 0 THEN
                refused := refused || place;
                EXIT;
            END IF;
            EXIT WHEN at = -2 AND kinds[place] <> 1;
            -- The next iteration creates it, or sees what another transaction has created meanwhile.
            at := -1;
        END LOOP;
    END LOOP;

    IF cardinality(refused) = 0 THEN
        FOR at IN 1 .. cardinality(vacant_names) LOOP
            SELECT r.path, r.partition, r.version INTO taken_path, taken_partition, actual
                FROM schema_of_store.index_entries e
                JOIN schema_of_store.records r ON r.path = e.path AND r.partition = e.partition
                WHERE e.index_name = vacant_names[at] AND e.key >= vacant_starts[at] AND e.key < vacant_stops[at] LIMIT 1;
            IF FOUND THEN
                taken := taken || at;
                taken_paths := taken_paths || taken_path;
                taken_partitions := taken_partitions || taken_partition;
                taken_versions := taken_versions || actual;
            END IF;
        END LOOP;
    END IF;
    IF cardinality(refused) = 0 AND taken IS NULL THEN
        FOR at IN 1 .. cardinality(managed_ids) LOOP
            SELECT m.open_ledger_id, m.sealed INTO open_id, is_sealed FROM schema_of_store.managed_ledgers m
                WHERE m.id = managed_ids[at] AND m.name IS NOT NULL FOR NO KEY UPDATE;
            SELECT s.entries, s.messages, s.appended_ms INTO start, messages_before, appended_ms
                FROM schema_of_store.ledger_segments s
                WHERE s.ledger_id = open_id AND is_sealed = 0
                    AND s.entries + sizes[at] < entries_max AND s.bytes + sizes_bytes[at] < bytes_max;
            ledger_ids := ledger_ids || CASE WHEN FOUND THEN open_id ELSE 0 END;
            entry_ids := entry_ids || start;
            message_counts := message_counts || messages_before;
            -- The time of an open ledger never decreases, so that it can be searched by time.
            times := times || greatest(now_ms, appended_ms);
        END LOOP;
    END IF;
    IF cardinality(refused) > 0 OR taken IS NOT NULL OR 0 = ANY (ledger_ids) THEN
        FOREACH place IN ARRAY made LOOP
            DELETE FROM schema_of_store.records r WHERE r.path = paths[place] AND r.partition = partitions[place];
            versions[place] := NULL;
        END LOOP;
        RETURN NEXT;
        RETURN;
    END IF;

    FOREACH place IN ARRAY key_order LOOP
        IF place = ANY (made) THEN
            IF kinds[place] = 0 THEN
                DELETE FROM schema_of_store.records r WHERE r.path = paths[place] AND r.partition = partitions[place];
                versions[place] := NULL;
            END IF;
            CONTINUE;
        END IF;
        CONTINUE WHEN versions[place] IS NULL;
        IF kinds[place] = 1 THEN
            UPDATE schema_of_store.records r
                SET version = nextval('schema_of_store.txnframework_numbers'), indexes = lists[place], value = contents[place]
                WHERE r.path = paths[place] AND r.partition = partitions[place]
                RETURNING r.version INTO STRICT actual;
            versions[place] := actual;
        ELSE
            DELETE FROM schema_of_store.records r WHERE r.path = paths[place] AND r.partition = partitions[place];
        END IF;
        CONTINUE WHEN befores[place] IS NOT DISTINCT FROM lists[place];
        FOR pair IN SELECT jsonb_array_elements(befores[place]::jsonb) LOOP
            DELETE FROM schema_of_store.index_entries e
                WHERE e.index_name = pair ->> 0 AND e.key = decode(pair ->> 1, 'hex')
                    AND e.path = paths[place] AND e.partition = partitions[place];
        END LOOP;
    END LOOP;
    FOR at IN 1 .. cardinality(index_places) LOOP
        place := index_places[at];
        IF befores[place] IS DISTINCT FROM lists[place] THEN
            INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
                VALUES (index_names[at], index_keys[at], paths[place], partitions[place]);
        END IF;
    END LOOP;

    FOR at IN 1 .. cardinality(managed_ids) LOOP
        IF sizes[at] = 1 THEN
            INSERT INTO schema_of_store.entries (place, messages_through, appended_ms, data) VALUES (
                (ledger_ids[at] << 32) + entry_ids[at], message_counts[at] + messages_through[done + 1], times[at],
                datas[done + 1]
            );
        ELSE
            INSERT INTO schema_of_store.entries (place, messages_through, appended_ms, data)
                SELECT (ledger_ids[at] << 32) + entry_ids[at] + e.number - 1, message_counts[at] + e.through, times[at], e.data
                FROM unnest(datas[done + 1 : done + sizes[at]], messages_through[done + 1 : done + sizes[at]])
                    WITH ORDINALITY AS e (data, through, number);
        END IF;
        UPDATE schema_of_store.ledger_segments s
            SET entries = s.entries + sizes[at], bytes = s.bytes + sizes_bytes[at],
                messages = s.messages + sizes_messages[at], appended_ms = times[at]
            WHERE s.ledger_id = ledger_ids[at];
        done := done + sizes[at];
    END LOOP;
    FOR at IN 1 .. cardinality(coordinators) LOOP
        -- Read first: usually the number is stored already, and the row, which all ledgers share, need not be locked.
        SELECT h.number INTO highest FROM schema_of_store.highest_txn_numbers h WHERE h.coordinator = coordinators[at];
        IF highest IS NULL OR highest < numbers[at] THEN
            INSERT INTO schema_of_store.highest_txn_numbers AS h (coordinator, number)
                VALUES (coordinators[at], numbers[at])
                ON CONFLICT (coordinator) DO UPDATE SET number = excluded.number WHERE excluded.number > h.number;
        END IF;
    END LOOP;
    RETURN NEXT;
END
$function$
