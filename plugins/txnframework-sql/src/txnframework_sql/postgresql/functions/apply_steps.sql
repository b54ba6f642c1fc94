-- Apply steps on records and ledgers, all of them or none; see _step_calls.py.
--
-- The parts are those of one or several steps, of which no two have a part on the same record, except for checks of an
-- existing one. If a part of any of them is refused, nothing is written, and the answer names every refused part of the
-- first kind that has any: of records, of ranges, or of ledgers. The caller then sends the other steps again.
--
-- Records are locked before ledgers, as everywhere, records in the order of their keys, and ledgers in the order of their
-- ids. So two calls never deadlock: no transaction that holds a ledger waits for a record, and no other one waits for a
-- ledger while it holds another. Everything is locked and examined before the first write, so nothing has to be undone,
-- except for records that were created for their locks.
--
-- Most calls have one to three records and ledgers. A loop of plain statements on single rows is then faster than
-- statements on sets. In each transaction, PL/pgSQL sets up each expression and each statement again. That costs as much as
-- the writes. An array that a function takes costs some microseconds, also an empty one. So there are few of each.
--
-- Arrays have these values for each of these:
--   a record, in the order of the keys: kinds (0 check, 1 put, 3 delete; then the expected version, -1 absent, -2 any)
--   a record, behind them also one whose key ends in its number: texts (path, or the prefix of it; partition, and the
--     record's own list of its index entries), contents (one value)
--   an index range that must be vacant: texts, behind those of the records (its index), bounds (start, stop)
--   a managed ledger, in the order of their ids: ledgers (its id; the number, bytes and messages of its entries)
--   an entry, in the order of the ledgers: datas, messages_through (from the first entry of its ledger on)
--   a coordinator: highest (its number, and the number of its highest transaction)
--
-- The ranges are looked at by a statement of its own, once all records are locked. So it sees the entry of each
-- transaction that checked or wrote one of these records before, and no later one puts an entry before the end of this
-- one. The model of this is tests/models/protocol/excluding.py. What a step itself puts into a range is not looked at.
--
-- lock_wait_ms: how long to wait for a lock; 0: as long as the connection's setting says.
--
-- The step may be the last part of a transaction of an application, whose connection then calls this. Locks are held
-- until its COMMIT, which follows at once, and no transaction waits for a row of the application while it holds one of
-- these locks. Then ``own`` has, and is otherwise NULL:
--   1 the random key of an advisory lock that the store holds. An advisory lock is in one database, so the connection is
--     one to the database of the store if the lock is not free.
--   2 how long, in ms, the server lets the transaction wait for its COMMIT, if the connection's own setting is not
--     shorter. A process that stops in between must not hold the locks.
--   3 and 4, and ``mark``: the transaction that was joined before, as the statement of the join found it; NULL: the driver
--     shows whether it has ended
--
-- Answers:
--   unjoined: why nothing was done for an application (NULL: it was). 1: the lock is free. 2: reads are of a snapshot, in
--     which neither the ledgers nor the ranges are those of now. 3: the application has ended the transaction. 4: it was
--     rolled back to an older savepoint.
--   is_outermost: whether the first record that was written shows that no savepoint is open. A row shows the
--     transaction, or the savepoint in it, that wrote the row.
--   refused: the places of the records that are not as expected; NULL: none
--   versions: for each record the version that it got or was deleted with, or that was found; NULL: it is absent
--   befores: for each record with a known key the list of index entries that it had; NULL: none had any
--   taken: for each range that is not vacant its number, and path, partition and version of a record with an entry in it;
--     NULL: none
--   places: for each ledger the place of its first entry; 0: the ledger is gone, sealed or full. NULL: no ledger was
--     looked at
CREATE FUNCTION schema_of_store.{name}(
    own bigint[], mark text, lock_wait_ms bigint,
    kinds bigint[], texts text[], contents bytea[], bounds bytea[],
    now_ms bigint, entries_max bigint, bytes_max bigint,
    ledgers bigint[], datas bytea[], messages_through bigint[], highest text[]
) RETURNS TABLE (
    unjoined bigint, is_outermost boolean,
    refused bigint[], versions bigint[], befores text[], taken text[], places bigint[]
) LANGUAGE plpgsql
-- Also on a connection of an application, each plan is made once.
SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan
AS $function$
#variable_conflict use_variable
DECLARE
    at bigint;
    count integer := cardinality(contents);
    known integer := cardinality(kinds) / 2;
    kind bigint;
    expected bigint;
    actual bigint;
    before text;
    is_outer boolean;
    pair jsonb;
    -- The places of the records that were created here, and of the others that are put or deleted.
    made bigint[] := '{}';
    stored bigint[] := '{}';
    path text;
    partition text;
    own_pause_ms bigint := 0;
    open_id bigint;
    place bigint;
    messages_before bigint;
    time_ms bigint;
    several_ledgers boolean := cardinality(ledgers) > 4;
    size bigint;
    done bigint := 0;
    is_refused boolean;
    ignored text;
BEGIN
    IF own IS NOT NULL THEN
        unjoined := CASE
            WHEN pg_try_advisory_xact_lock_shared(own[1]) THEN 1
            WHEN cardinality(bounds) + cardinality(ledgers) > 0
                AND current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN 2
        END;
        IF unjoined IS NULL AND own[3] IS NOT NULL THEN
            unjoined := CASE
                WHEN own[3] <> pg_backend_pid() OR own[4] <> (extract(epoch FROM now()) * 1000000)::bigint THEN 3
                WHEN mark <> coalesce(current_setting('txnframework.joined', true), '') THEN 4
            END;
        END IF;
        IF unjoined IS NOT NULL THEN
            RETURN NEXT;
            RETURN;
        END IF;
        IF current_setting('idle_in_transaction_session_timeout') <> '0' THEN
            own_pause_ms := extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000;
        END IF;
        IF own_pause_ms = 0 OR own_pause_ms > own[2] THEN
            ignored := set_config('idle_in_transaction_session_timeout', own[2]::text, true);
        END IF;
        -- A confirmed commit must be on disk.
        IF current_setting('synchronous_commit') = 'off' THEN
            ignored := set_config('synchronous_commit', 'on', true);
        END IF;
    END IF;
    IF lock_wait_ms > 0 THEN
        ignored := set_config('lock_timeout', lock_wait_ms::text, true);
    END IF;

    FOR at IN 1 .. known LOOP
        kind := kinds[2 * at - 1];
        expected := kinds[2 * at];
        LOOP
            IF expected = -1 THEN
                -- An absent record cannot be locked. Once it is created here, no other transaction can create it before
                -- the end of this one. A record that must be absent, but is not put, is deleted again.
                INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                    VALUES (texts[3 * at - 2], texts[3 * at - 1], nextval('schema_of_store.txnframework_numbers'),
                        texts[3 * at], coalesce(contents[at], ''))
                    ON CONFLICT DO NOTHING
                    RETURNING r.version, r.xmin = pg_current_xact_id()::xid INTO actual, is_outer;
                IF FOUND THEN
                    INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
                        SELECT e.pair ->> 0, decode(e.pair ->> 1, 'hex'), texts[3 * at - 2], texts[3 * at - 1]
                        FROM jsonb_array_elements(texts[3 * at]::jsonb) AS e (pair);
                    made := made || at;
                    versions[at] := actual;
                    is_outermost := coalesce(is_outermost, is_outer);
                    EXIT;
                END IF;
            END IF;
            IF kind = 0 THEN
                SELECT r.version, NULL INTO actual, before FROM schema_of_store.records r
                    WHERE r.path = texts[3 * at - 2] AND r.partition = texts[3 * at - 1] FOR SHARE;
            ELSE
                SELECT r.version, r.indexes INTO actual, before FROM schema_of_store.records r
                    WHERE r.path = texts[3 * at - 2] AND r.partition = texts[3 * at - 1] FOR UPDATE;
            END IF;
            versions[at] := actual;
            IF actual IS NOT NULL THEN
                IF kinds[2 * at] NOT IN (actual, -2) THEN
                    refused := refused || at;
                ELSIF kind <> 0 THEN
                    stored := stored || at;
                    IF before IS NOT NULL THEN
                        befores := coalesce(befores, array_fill(NULL::text, ARRAY[known]));
                        befores[at] := before;
                    END IF;
                END IF;
                EXIT;
            END IF;
            IF expected >= 0 THEN
                refused := refused || at;
                EXIT;
            END IF;
            EXIT WHEN expected = -2 AND kind <> 1;
            -- The next iteration creates it, or sees what another transaction has created meanwhile.
            expected := -1;
        END LOOP;
    END LOOP;

    is_refused := refused IS NOT NULL;
    IF NOT is_refused THEN
        FOR at IN 1 .. cardinality(bounds) / 2 LOOP
            PERFORM FROM schema_of_store.index_entries e
                WHERE e.index_name = texts[3 * count + at] AND e.key >= bounds[2 * at - 1] AND e.key < bounds[2 * at]
                LIMIT 1;
            CONTINUE WHEN NOT FOUND;
            -- Perhaps it is an entry of a record that was created here.
            SELECT r.path, r.partition, r.version INTO path, partition, actual
                FROM schema_of_store.index_entries e
                JOIN schema_of_store.records r ON r.path = e.path AND r.partition = e.partition
                WHERE e.index_name = texts[3 * count + at] AND e.key >= bounds[2 * at - 1] AND e.key < bounds[2 * at]
                    AND NOT EXISTS (
                        SELECT FROM unnest(made) AS m (at)
                        WHERE texts[3 * m.at - 2] = r.path AND texts[3 * m.at - 1] = r.partition
                    )
                LIMIT 1;
            IF FOUND THEN
                taken := taken || ARRAY[at::text, path, partition, actual::text];
                is_refused := true;
            END IF;
        END LOOP;
    END IF;
    IF NOT is_refused THEN
        FOR at IN 1 .. cardinality(ledgers) BY 4 LOOP
            -- Until this lock is released, every other append, roll, seal, delete or trim of the ledger waits. So the
            -- following statements see the ledger as it stays.
            SELECT m.open_ledger_id INTO open_id FROM schema_of_store.managed_ledgers m
                WHERE m.id = ledgers[at] AND m.name IS NOT NULL AND m.sealed = 0 FOR NO KEY UPDATE;
            IF several_ledgers THEN
                -- No ledger is changed before each is known to take its entries.
                SELECT s.ledger_id INTO open_id FROM schema_of_store.ledger_segments s
                    WHERE s.ledger_id = open_id
                        AND s.entries + ledgers[at + 1] < entries_max AND s.bytes + ledgers[at + 2] < bytes_max;
            END IF;
            places := places || coalesce(open_id, 0);
            is_refused := is_refused OR open_id IS NULL;
        END LOOP;
    END IF;
    IF NOT is_refused THEN
        FOR at IN 1 .. coalesce(cardinality(places), 0) LOOP
            open_id := places[at];
            size := ledgers[4 * at - 2];
            -- The time of an open ledger never decreases, so that it can be searched by time.
            UPDATE schema_of_store.ledger_segments s
                SET entries = s.entries + size, bytes = s.bytes + ledgers[4 * at - 1],
                    messages = s.messages + ledgers[4 * at], appended_ms = greatest(now_ms, s.appended_ms)
                WHERE s.ledger_id = open_id
                    AND s.entries + size < entries_max AND s.bytes + ledgers[4 * at - 1] < bytes_max
                RETURNING (open_id << 32) + s.entries - size, s.messages - ledgers[4 * at], s.appended_ms
                INTO place, messages_before, time_ms;
            IF place IS NULL THEN
                is_refused := true;
            ELSIF size = 1 THEN
                INSERT INTO schema_of_store.entries (place, messages_through, appended_ms, data)
                    VALUES (place, messages_before + messages_through[done + 1], time_ms, datas[done + 1]);
            ELSE
                INSERT INTO schema_of_store.entries (place, messages_through, appended_ms, data)
                    SELECT place + e.number - 1, messages_before + e.through, time_ms, e.data
                    FROM unnest(datas[done + 1 : done + size], messages_through[done + 1 : done + size])
                        WITH ORDINALITY AS e (data, through, number);
            END IF;
            places[at] := coalesce(place, 0);
            done := done + size;
        END LOOP;
    END IF;
    IF is_refused THEN
        FOREACH at IN ARRAY made LOOP
            DELETE FROM schema_of_store.records r WHERE r.path = texts[3 * at - 2] AND r.partition = texts[3 * at - 1];
            FOR pair IN SELECT jsonb_array_elements(texts[3 * at]::jsonb) LOOP
                DELETE FROM schema_of_store.index_entries e
                    WHERE e.index_name = pair ->> 0 AND e.key = decode(pair ->> 1, 'hex')
                        AND e.path = texts[3 * at - 2] AND e.partition = texts[3 * at - 1];
            END LOOP;
            versions[at] := NULL;
        END LOOP;
        RETURN NEXT;
        RETURN;
    END IF;

    FOREACH at IN ARRAY stored LOOP
        IF kinds[2 * at - 1] = 1 THEN
            UPDATE schema_of_store.records r
                SET version = nextval('schema_of_store.txnframework_numbers'), indexes = texts[3 * at], value = contents[at]
                WHERE r.path = texts[3 * at - 2] AND r.partition = texts[3 * at - 1]
                RETURNING r.version, r.xmin = pg_current_xact_id()::xid INTO STRICT actual, is_outer;
            versions[at] := actual;
            is_outermost := coalesce(is_outermost, is_outer);
        ELSE
            DELETE FROM schema_of_store.records r WHERE r.path = texts[3 * at - 2] AND r.partition = texts[3 * at - 1];
        END IF;
        CONTINUE WHEN befores[at] IS NOT DISTINCT FROM texts[3 * at];
        FOR pair IN SELECT jsonb_array_elements(befores[at]::jsonb) LOOP
            DELETE FROM schema_of_store.index_entries e
                WHERE e.index_name = pair ->> 0 AND e.key = decode(pair ->> 1, 'hex')
                    AND e.path = texts[3 * at - 2] AND e.partition = texts[3 * at - 1];
        END LOOP;
        INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
            SELECT e.pair ->> 0, decode(e.pair ->> 1, 'hex'), texts[3 * at - 2], texts[3 * at - 1]
            FROM jsonb_array_elements(texts[3 * at]::jsonb) AS e (pair);
    END LOOP;
    FOREACH at IN ARRAY made LOOP
        IF kinds[2 * at - 1] <> 1 THEN
            DELETE FROM schema_of_store.records r WHERE r.path = texts[3 * at - 2] AND r.partition = texts[3 * at - 1];
            versions[at] := NULL;
        END IF;
    END LOOP;
    FOR at IN known + 1 .. count LOOP
        LOOP
            actual := nextval('schema_of_store.txnframework_numbers');
            path := texts[3 * at - 2] || '/' || lpad(actual::text, 20, '0');
            INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                VALUES (path, texts[3 * at - 1], actual, texts[3 * at], contents[at])
                ON CONFLICT DO NOTHING;
            -- Perhaps a record was written with such a number in its whole key.
            EXIT WHEN FOUND;
        END LOOP;
        INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
            SELECT e.pair ->> 0, decode(e.pair ->> 1, 'hex'), path, texts[3 * at - 1]
            FROM jsonb_array_elements(texts[3 * at]::jsonb) AS e (pair);
        versions[at] := actual;
    END LOOP;
    FOR at IN 1 .. cardinality(highest) BY 2 LOOP
        -- Any ledger of the step may keep them. Until the COMMIT nothing else waits for this row, as it is locked with the
        -- ledger.
        UPDATE schema_of_store.highest_txn_numbers h SET number = highest[at + 1]
            WHERE h.coordinator = highest[at]::bigint AND h.managed_id = ledgers[1] AND h.number < highest[at + 1];
        IF NOT FOUND THEN
            INSERT INTO schema_of_store.highest_txn_numbers AS h (coordinator, managed_id, number)
                VALUES (highest[at]::bigint, ledgers[1], highest[at + 1])
                ON CONFLICT (coordinator, managed_id) DO UPDATE SET number = excluded.number WHERE excluded.number > h.number;
        END IF;
    END LOOP;
    RETURN NEXT;
END
$function$
