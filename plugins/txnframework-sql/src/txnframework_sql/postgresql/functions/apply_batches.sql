-- Apply batches of steps on records, each completely or not at all, independently of each other; see
-- _record_writes.py.
--
-- This is a function and not one statement with several parts. At READ COMMITTED, each statement in a function sees
-- everything that was committed when that statement began. All parts of one statement see only what was committed when
-- the whole statement began. So a call that waited for a record would not see the index entries that the record got
-- meanwhile, and would not remove them.
--
-- Arrays have one value for each of these:
--   a batch: ends (the number of its last step)
--   a step: kinds (0 check, 1 put, 2 put under the next number, 3 delete), paths, partitions, expecteds (a version, -1
--     absent, -2 any), lists (the record's own list of its index entries), contents
--   a record to lock: lock_paths, lock_partitions, lock_writes, lock_makes
--
-- These records are locked before any other step, in the order of their keys, so that two calls never deadlock. A record
-- that is only checked is locked against changes, but not against other checks. An absent record that may be created
-- (lock_makes) is created for the lock, with a version that no record has, and counts as absent. The remaining ones of
-- these are deleted at the end.
--
-- lock_wait_ms: how long to wait for a lock; 0: as long as the connection's setting says.
--
-- Answers: for each step that wrote, the new version and the index entries that the record had before. For each refused
-- batch, its first step whose expectation was not met, with the stored version.
CREATE FUNCTION schema_of_store.{name}(
    ends bigint[],
    kinds bigint[], paths text[], partitions text[], expecteds bigint[], lists text[], contents bytea[],
    lock_paths text[], lock_partitions text[], lock_writes boolean[], lock_makes boolean[],
    lock_wait_ms bigint
) RETURNS TABLE (step bigint, is_met boolean, version bigint, list_before text) LANGUAGE plpgsql AS $function$
#variable_conflict use_column
DECLARE
    place bigint;
    batch_end bigint;
    batch_start bigint := 1;
    refused bigint;
    is_there boolean;
    is_placeholder boolean;
    has_placeholders boolean := false;
    actual bigint;
    before text;
    befores text[];
    -- The versions of the found records, and of the records written here before their batch is complete.
    founds bigint[];
    mades bigint[];
    list jsonb;
    pair jsonb;
BEGIN
    IF lock_wait_ms > 0 THEN
        PERFORM set_config('lock_timeout', lock_wait_ms::text, true);
    END IF;
    FOR place IN 1 .. cardinality(lock_paths) LOOP
        LOOP
            IF lock_writes[place] THEN
                PERFORM FROM schema_of_store.records r
                    WHERE r.path = lock_paths[place] AND r.partition = lock_partitions[place] FOR UPDATE;
            ELSE
                PERFORM FROM schema_of_store.records r
                    WHERE r.path = lock_paths[place] AND r.partition = lock_partitions[place] FOR SHARE;
            END IF;
            EXIT WHEN FOUND OR NOT lock_makes[place];
            INSERT INTO schema_of_store.records AS r (path, partition, version, value)
                VALUES (lock_paths[place], lock_partitions[place], -1, '') ON CONFLICT DO NOTHING;
            has_placeholders := has_placeholders OR FOUND;
            EXIT WHEN FOUND;
        END LOOP;
    END LOOP;

    FOREACH batch_end IN ARRAY ends LOOP
        refused := NULL;
        -- A batch of one put needs no lock before the write: it replaces the version that it read, or reads again.
        WHILE batch_start = batch_end AND kinds[batch_end] = 1 LOOP
            SELECT r.version, r.indexes INTO actual, before FROM schema_of_store.records r
                WHERE r.path = paths[batch_end] AND r.partition = partitions[batch_end];
            IF NOT FOUND AND expecteds[batch_end] < 0 THEN
                INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                    VALUES (paths[batch_end], partitions[batch_end], nextval('schema_of_store.txnframework_numbers'), lists[batch_end],
                        contents[batch_end])
                    ON CONFLICT DO NOTHING RETURNING r.version INTO actual;
            ELSIF expecteds[batch_end] IN (actual, -2) THEN
                UPDATE schema_of_store.records r SET version = nextval('schema_of_store.txnframework_numbers'), indexes = lists[batch_end],
                        value = contents[batch_end]
                    WHERE r.path = paths[batch_end] AND r.partition = partitions[batch_end] AND r.version = actual
                    RETURNING r.version INTO actual;
            ELSE
                actual := nullif(actual, -1);
                refused := batch_end;
                EXIT;
            END IF;
            IF FOUND THEN
                mades[batch_end] := actual;
                befores[batch_end] := before;
                EXIT;
            END IF;
        END LOOP;
        FOR place IN batch_start .. batch_end LOOP
            CONTINUE WHEN kinds[place] = 2;
            EXIT WHEN refused IS NOT NULL OR mades[place] IS NOT NULL;
            LOOP
                IF kinds[place] = 0 THEN
                    SELECT r.version INTO actual FROM schema_of_store.records r
                        WHERE r.path = paths[place] AND r.partition = partitions[place] FOR SHARE;
                    is_there := FOUND;
                ELSE
                    SELECT r.version, r.indexes INTO actual, before FROM schema_of_store.records r
                        WHERE r.path = paths[place] AND r.partition = partitions[place] FOR UPDATE;
                    is_there := FOUND;
                END IF;
                is_placeholder := is_there AND actual = -1;
                IF is_there AND NOT is_placeholder THEN
                    IF expecteds[place] NOT IN (actual, -2) THEN
                        refused := place;
                    END IF;
                    founds[place] := actual;
                    befores[place] := before;
                    EXIT;
                END IF;
                actual := NULL;
                IF expecteds[place] >= 0 THEN
                    refused := place;
                    EXIT;
                END IF;
                EXIT WHEN kinds[place] = 3 OR (kinds[place] = 0 AND expecteds[place] = -2);
                IF is_placeholder THEN
                    UPDATE schema_of_store.records r SET version = nextval('schema_of_store.txnframework_numbers'), indexes = lists[place],
                            value = coalesce(contents[place], '')
                        WHERE r.path = paths[place] AND r.partition = partitions[place]
                        RETURNING r.version INTO STRICT actual;
                    mades[place] := actual;
                    befores[place] := NULL;
                    EXIT;
                END IF;
                -- An absent record cannot be locked. Once it is created here, no other transaction can create it before
                -- the end of this one. A record that is only checked is deleted again.
                INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                    VALUES (paths[place], partitions[place], nextval('schema_of_store.txnframework_numbers'), lists[place],
                        coalesce(contents[place], ''))
                    ON CONFLICT DO NOTHING RETURNING r.version INTO actual;
                IF FOUND THEN
                    mades[place] := actual;
                    EXIT;
                END IF;
                -- Another transaction has created it meanwhile; the next iteration sees it.
            END LOOP;
            EXIT WHEN refused IS NOT NULL;
        END LOOP;

        IF refused IS NOT NULL THEN
            step := refused;
            is_met := false;
            version := actual;
            list_before := NULL;
            RETURN NEXT;
        END IF;
        FOR place IN batch_start .. batch_end LOOP
            IF mades[place] IS NOT NULL AND (kinds[place] = 0 OR refused IS NOT NULL) THEN
                DELETE FROM schema_of_store.records r WHERE r.path = paths[place] AND r.partition = partitions[place];
            END IF;
            CONTINUE WHEN kinds[place] = 0 OR refused IS NOT NULL OR (kinds[place] = 3 AND founds[place] IS NULL);
            actual := mades[place];
            IF kinds[place] = 3 THEN
                DELETE FROM schema_of_store.records r WHERE r.path = paths[place] AND r.partition = partitions[place];
            ELSIF kinds[place] = 2 THEN
                LOOP
                    actual := nextval('schema_of_store.txnframework_numbers');
                    paths[place] := paths[place] || '/' || lpad(actual::text, 20, '0');
                    INSERT INTO schema_of_store.records AS r (path, partition, version, indexes, value)
                        VALUES (paths[place], partitions[place], actual, lists[place], contents[place])
                        ON CONFLICT DO NOTHING;
                    EXIT WHEN FOUND;
                    paths[place] := left(paths[place], -21);
                END LOOP;
            ELSIF actual IS NULL THEN
                UPDATE schema_of_store.records r
                    SET version = nextval('schema_of_store.txnframework_numbers'), indexes = lists[place], value = contents[place]
                    WHERE r.path = paths[place] AND r.partition = partitions[place]
                    RETURNING r.version INTO STRICT actual;
            END IF;
            IF befores[place] IS DISTINCT FROM lists[place] THEN
                list := befores[place]::jsonb;
                FOR number IN 0 .. coalesce(jsonb_array_length(list), 0) - 1 LOOP
                    pair := list -> number;
                    DELETE FROM schema_of_store.index_entries e
                        WHERE e.index_name = pair ->> 0 AND e.key = decode(pair ->> 1, 'hex')
                            AND e.path = paths[place] AND e.partition = partitions[place];
                END LOOP;
                list := lists[place]::jsonb;
                FOR number IN 0 .. coalesce(jsonb_array_length(list), 0) - 1 LOOP
                    pair := list -> number;
                    INSERT INTO schema_of_store.index_entries (index_name, key, path, partition)
                        VALUES (pair ->> 0, decode(pair ->> 1, 'hex'), paths[place], partitions[place]);
                END LOOP;
            END IF;
            step := place;
            is_met := true;
            version := actual;
            list_before := befores[place];
            RETURN NEXT;
        END LOOP;
        batch_start := batch_end + 1;
    END LOOP;
    IF has_placeholders THEN
        FOR place IN 1 .. cardinality(lock_paths) LOOP
            DELETE FROM schema_of_store.records r
                WHERE r.path = lock_paths[place] AND r.partition = lock_partitions[place] AND r.version = -1;
        END LOOP;
    END IF;
END
$function$;
